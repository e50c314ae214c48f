/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw protocol connections: what a client could do that does not use the library. harness.h
 * includes this. What contradicts the protocol fails the test by must(), and errors that the daemon
 * may answer are returned.
 */
#pragma once

#include <sys/mman.h>

#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/ledger_layout.h"

struct test_daemon;

enum { RAW_SEGMENTS_MAX = 64, RAW_NOTICES_MAX = 256 };

/* How far a connection has come. */
enum raw_stage { RAW_CONNECTED, RAW_GREETED, RAW_READY };

struct raw {
	int fd;
	uint32_t serial;
	uint32_t life;		/* that of the last ADOPTED */
	const char *name_space; /* for rc_hello(); NULL: the default one */
	bool unsealed;		/* it does not seal what it may write */
	int wait_ms;		/* how long rc_receive() waits; 0: WAIT_MS */
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
		int fd;	   /* -1: a view */
		void *map; /* NULL: without seals it is written by pwrite() */
		size_t size;
	} writable[RAW_SEGMENTS_MAX],	 /* descriptors that came with drafts */
		views[RAW_SEGMENTS_MAX]; /* of sealed segments, which keep their memory */
	unsigned views_n;
	unsigned imports_n;
	struct raw_import {
		uint32_t segment, generation;
	} imports[RAW_SEGMENTS_MAX]; /* what rc_import() opened first, and rc_unmapped() has not
					closed */
	unsigned nnotices;
	struct raw_notice {
		enum wire_type type; /* FREED, UNMAP */
		uint64_t ref, cookie;
		uint32_t segment, generation;
	} notices[RAW_NOTICES_MAX]; /* those that came while something else was awaited */
};

struct raw rc_connect(const struct test_daemon *d);
void rc_hello(struct raw *rc);			 /* until WELCOME, and maps the catalog */
void rc_ledger(struct raw *rc);			 /* until READY; ledger_fd, if any, is its */
struct raw rc_open(const struct test_daemon *d); /* all three of these */
/*
 * The same as far as @stage, at the path @socket, for those whom the daemon may refuse: each step
 * takes at most @wait_ms (0: WAIT_MS). Returns 0, the wire error or a negative errno; after a
 * failure nothing is open.
 */
int rc_try_open(struct raw *rc, const char *socket, enum raw_stage stage, int wait_ms);
void rc_goodbye(struct raw *rc); /* leaves, and waits until the daemon has seen that */
void rc_close(struct raw *rc);	 /* leaves */

/*
 * Fills in the type, the length and, if it is 0, the serial, and sends the message. Returns 0 or a
 * negative errno.
 */
int rc_send(struct raw *rc, enum wire_type type, void *message, size_t length, int fd_peek);
/* Sends any bytes with any number of copies of a descriptor. Returns 0 or a negative errno. */
int rc_send_bytes(struct raw *rc, const void *bytes, size_t length, int fd_peek, unsigned nfds);
/* Receives the next message. Returns -ETIMEDOUT after WAIT_S, and -ECONNRESET at the end. */
int rc_receive(struct raw *rc, struct conn_message *m);
/* Sends a request, and receives until its answer comes. */
int rc_call(struct raw *rc, enum wire_type type, void *message, size_t length,
	    struct conn_message *answer);
/* Nothing more may come but ERROR PROTOCOL and then the end. */
void rc_must_end(struct raw *rc);
/* The message must be that error, with a text that does not name a shm object. */
void rc_must_fail(const struct conn_message *m, enum wire_error code);

void rc_sync(struct raw *rc);
/*
 * Returns 0 with the draft, or the positive wire error. A descriptor that comes with the draft is
 * kept in rc->writable.
 */
int rc_create(struct raw *rc, const char *name, uint64_t nbytes, int64_t timeout_ns,
	      struct wire_draft *draft);
/* Lets go of sealed segments that the daemon has ended, as every client must. rc_call() does so. */
void rc_let_go(struct raw *rc);
/* The descriptor with which that draft can be written, but not if its segment is sealed and
 * something was published there. */
int rc_writable(const struct raw *rc, const struct wire_draft *draft);
/* The draft's bytes, mapped for writing; sealed ones are mapped already, until rc_let_go(). */
static inline unsigned char *rc_bytes(const struct raw *rc, const struct wire_draft *draft)
{
	const struct raw_segment *w = rc->writable, *end = w + rc->writable_n;
	unsigned char *p;

	while (w < end &&
	       (w->segment != draft->segment || w->generation != draft->segment_generation))
		w++;
	must(w < end);
	p = w->map ? w->map
		   : mmap(NULL, draft->segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
	must(p != MAP_FAILED);
	return p + draft->offset;
}
/* Returns 0 if the answer has that type, and else the wire error. */
int rc_judge(const struct conn_message *m, enum wire_type expected);
/* Commits a tensor of @nbytes uint8 under @name. Returns 0 or the wire error. */
int rc_commit(struct raw *rc, uint64_t ref, const char *name, uint64_t nbytes);
/* The same with WIRE_LIFETIME_* and a time to live. */
int rc_commit_as(struct raw *rc, uint64_t ref, const char *name, uint64_t nbytes, unsigned lifetime,
		 uint64_t ttl_ns);
int rc_ref(struct raw *rc, enum wire_type type, uint64_t ref); /* ABORT or RELEASED */
int rc_map(struct raw *rc, uint64_t ref, int *fd);	       /* of a tensor that rc holds */
int rc_delete(struct raw *rc, const char *name);
int rc_link(struct raw *rc, uint64_t ref, const char *name);
/* Publishes as many names as one user may have in the hash bucket of the name @beside. */
void rc_fill_bucket(struct raw *rc, const char *beside);

/* Creates a draft, fills it with @byte and commits it. Returns 0 or the wire error. */
int rc_put(struct raw *rc, const char *name, uint64_t nbytes, int byte, struct wire_draft *draft);
/* The same with a lifetime, and with whatever bytes are there. */
int rc_put_as(struct raw *rc, const char *name, uint64_t nbytes, unsigned lifetime, uint64_t ttl_ns,
	      struct wire_draft *draft);

/* Waits for the next FREED or UNMAP, as @type says, and keeps notices of the other type. */
struct raw_notice rc_notice(struct raw *rc, enum wire_type type);
/* Whether no notice has come up to now. It reads everything that the daemon has to say. */
bool rc_told_nothing(struct raw *rc);

/* Takes a lease by the protocol. Returns false if the tensor is not live. */
bool rc_hold(struct raw *rc, uint64_t ref);
/* The part of it between G3 and G4: asks for the segment, so that the lease counts. */
void rc_become_holder(struct raw *rc, uint64_t ref);
void rc_drop(struct raw *rc, uint64_t ref);
/*
 * Maps the segment of a live or held tensor read-only and returns its payload. The mapping stays
 * until the process ends, but that of a sealed segment until the daemon has ended the segment.
 */
const unsigned char *rc_view(struct raw *rc, const struct wire_draft *draft);
void bytes_must_be(const unsigned char *bytes, int byte, size_t n);

/* The counter of that slot in its ledger. */
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

/* What the daemon says that the user has, and may have. */
static inline struct wire_user rc_user(struct raw *rc, uint32_t uid)
{
	struct wire_users users = { .from = uid, .flags = WIRE_USERS_EXACT };
	struct wire_user user;
	struct conn_message m;

	must_be(rc_call(rc, WIRE_USERS, &users, sizeof(users), &m), 0);
	must_be(rc_judge(&m, WIRE_USER), 0);
	memcpy(&user, m.bytes, sizeof(user));
	return user;
}

/* A memfd that could be a ledger of that many slots, but is not sealed. */
int ledger_new(uint32_t slots, uint64_t magic);
int ledger_seal(int fd);

#include "tests/harness/raw_device.h" /* it needs what is above */
