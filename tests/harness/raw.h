/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw protocol connections: what a client could do that does not use the library. Comes with
 * harness.h. What fails against the protocol fails the test, by must(); what the daemon may answer
 * is returned.
 */
#pragma once

#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/ledger_layout.h"

struct test_daemon;

enum { RAW_SEGMENTS_MAX = 64, RAW_NOTICES_MAX = 256 };

struct raw {
	int fd;
	uint32_t serial;
	struct wire_welcome welcome;
	int catalog_fd;
	const struct catalog_header *catalog;
	int ledger_fd;
	struct ledger *ledger;
	size_t ledger_size;
	unsigned writable_n;
	struct raw_segment {
		uint32_t segment;
		uint32_t generation;
		int fd;
	} writable[RAW_SEGMENTS_MAX]; /* descriptors that came with drafts */
	unsigned nnotices;
	struct raw_notice {
		enum wire_type type; /* FREED, UNMAP */
		uint64_t ref, cookie;
		uint32_t segment, generation;
	} notices[RAW_NOTICES_MAX]; /* came while something else was waited for */
};

struct raw rc_connect(const struct test_daemon *d);
void rc_hello(struct raw *rc);			 /* until WELCOME, the catalog mapped */
void rc_ledger(struct raw *rc);			 /* until READY */
struct raw rc_open(const struct test_daemon *d); /* all three */
void rc_goodbye(struct raw *rc); /* leaves, and waits until the daemon has seen it */
void rc_close(struct raw *rc);	 /* leaves */

/* Fills in type, length and, if it is 0, the serial; sends it. 0 or a negative errno. */
int rc_send(struct raw *rc, enum wire_type type, void *message, size_t length, int fd_peek);
/* Whatever bytes, with any number of copies of a descriptor. 0 or a negative errno. */
int rc_send_bytes(struct raw *rc, const void *bytes, size_t length, int fd_peek, unsigned nfds);
/* The next message; -ETIMEDOUT after WAIT_S, -ECONNRESET at the end. */
int rc_receive(struct raw *rc, struct conn_message *m);
/* Sends, then receives until the answer to that. */
int rc_call(struct raw *rc, enum wire_type type, void *message, size_t length,
	    struct conn_message *answer);
/* Nothing more comes but perhaps ERROR PROTOCOL, then the end. */
void rc_must_end(struct raw *rc);
/* The next message is that error, of a text without the name of a shm object. */
void rc_must_fail(const struct conn_message *m, enum wire_error code);

void rc_settle(struct raw *rc);
/* 0 with the draft, or the positive wire error. A descriptor that comes with it is kept in
 * rc->writable. */
int rc_create(struct raw *rc, const char *name, uint64_t nbytes, int64_t timeout_ns,
	      struct wire_draft *draft);
/* The descriptor to write that draft with. */
int rc_writable(const struct raw *rc, const struct wire_draft *draft);
/* What an answer means: 0 if it is of that type, else the wire error. */
int rc_judge(const struct conn_message *m, enum wire_type expected);
/* A tensor of @nbytes uint8 under @name; 0 or the wire error. */
int rc_commit(struct raw *rc, uint64_t ref, const char *name, uint64_t nbytes);
int rc_ref(struct raw *rc, enum wire_type type, uint64_t ref); /* ABORT or RELEASED */
int rc_map(struct raw *rc, uint64_t ref, int *fd);	       /* of a tensor that it holds */
int rc_delete(struct raw *rc, const char *name);
int rc_link(struct raw *rc, uint64_t ref, const char *name);

/* Create, fill with @byte, commit; 0 or the wire error. */
int rc_put(struct raw *rc, const char *name, uint64_t nbytes, int byte, struct wire_draft *draft);
/* ---- memory on devices; 0 or the wire error ---- */

/* @fd_peek opens its first part, or is -1. The device's UUID is @device and zeros. */
int rc_export(struct raw *rc, enum segment_kind kind, uint16_t device, uint64_t size,
	      uint64_t part_size, uint32_t parts, int fd_peek, struct wire_segment_ref *seg);
/* Sends the next part; an error comes later, if at all. Its serial. */
uint32_t rc_part(struct raw *rc, const struct wire_segment_ref *seg, uint32_t part, uint64_t size,
		 int fd_peek);
/* Sends UNEXPORT; its serial. */
uint32_t rc_unexport(struct raw *rc, const struct wire_segment_ref *seg);
/* The answer of that serial: 0 if it is of @type, else the wire error. */
int rc_answer(struct raw *rc, uint32_t serial, enum wire_type type);
/* @fd may be NULL: then what comes is closed. */
int rc_import(struct raw *rc, const struct wire_segment_ref *seg, uint32_t part,
	      struct wire_export *imported, int *fd);
void rc_unmapped(struct raw *rc, const struct wire_segment_ref *seg);

struct raw_place {
	const char *name;
	uint64_t offset, nbytes, cookie;
	uint8_t ndim;	   /* leading sizes of 1 make it so many; 0: one */
	const void *event; /* WIRE_HANDLE_BYTES, or NULL */
	const void *meta;
	uint16_t meta_len;
};
/* rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 100) */
#define rc_place(rc, seg, placed, ...)                                                             \
	rc_place_as(rc, seg, placed, &(const struct raw_place){ __VA_ARGS__ })
int rc_place_as(struct raw *rc, const struct wire_segment_ref *seg, struct wire_placed *placed,
		const struct raw_place *place);
void rc_finished(struct raw *rc, uint64_t ref, bool failed);
/* The first device with a number of at least @from; false: there is none. */
bool rc_device(struct raw *rc, uint32_t from, struct wire_device *device);

/* The next FREED or UNMAP, whichever is asked for; others that come before are kept. */
struct raw_notice rc_notice(struct raw *rc, enum wire_type type);
/* Nothing of that kind has come up to now: all the daemon had to say is read. */
bool rc_told_nothing(struct raw *rc);

/* Takes a lease by the protocol: false if the tensor is not live. */
bool rc_hold(struct raw *rc, uint64_t ref);
void rc_drop(struct raw *rc, uint64_t ref);
/* Maps the segment of a live or held tensor read-only; its payload. The mapping stays until the
 * process ends. */
const unsigned char *rc_view(struct raw *rc, const struct wire_draft *draft);
void bytes_must_be(const unsigned char *bytes, int byte, size_t n);

/* Its ledger's counter of that slot. */
static inline _Atomic uint32_t *rc_held(const struct raw *rc, uint32_t slot)
{
	ledger_touch(rc->ledger->touched, slot);
	return &ledger_held(rc->ledger, rc->welcome.max_tensors)[slot];
}

static inline const struct catalog_row *rc_row(const struct raw *rc, uint64_t ref)
{
	const unsigned char *base = (const unsigned char *)rc->catalog + rc->catalog->off_rows;

	return (const struct catalog_row *)(const void *)base + ref_slot(ref);
}

static inline const struct catalog_segment *rc_segment(const struct raw *rc, uint32_t index)
{
	const unsigned char *base = (const unsigned char *)rc->catalog + rc->catalog->off_segments;

	return (const struct catalog_segment *)(const void *)base + index;
}

static inline enum row_progress rc_progress(const struct raw *rc, uint64_t ref)
{
	return (enum row_progress)atomic_load(&rc_row(rc, ref)->progress);
}

/* A memfd ready to be a ledger of that many slots, but not sealed. */
int ledger_new(uint32_t slots, uint64_t magic);
int ledger_seal(int fd);
