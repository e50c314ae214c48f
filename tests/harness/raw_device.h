/* SPDX-License-Identifier: Apache-2.0 */
/* Raw protocol connections: memory on devices. raw.h includes this. */
#pragma once

/* ---- memory on devices; 0 or the wire error ---- */

/* @fd_peek opens the first part, or is -1. The device's UUID is @device followed by zeros. */
int rc_export(struct raw *rc, enum segment_kind kind, uint16_t device, uint64_t size,
	      uint64_t part_size, uint32_t parts, int fd_peek, struct wire_segment_ref *seg);
/* Sends the next part and returns its serial. An error comes later, if at all. */
uint32_t rc_part(struct raw *rc, const struct wire_segment_ref *seg, uint32_t part, uint64_t size,
		 int fd_peek);
/* Sends UNEXPORT and returns its serial. */
uint32_t rc_unexport(struct raw *rc, const struct wire_segment_ref *seg);
/* Waits for the answer of that serial. Returns 0 if it has @type, and else the wire error. */
int rc_answer(struct raw *rc, uint32_t serial, enum wire_type type);
/* If @fd is NULL, a descriptor that comes is closed. */
int rc_import(struct raw *rc, const struct wire_segment_ref *seg, uint32_t part,
	      struct wire_export *imported, int *fd);
void rc_unmapped(struct raw *rc, const struct wire_segment_ref *seg);

struct raw_place {
	const char *name;
	uint64_t offset, nbytes, cookie;
	uint8_t ndim;	   /* filled up with leading sizes of 1; 0 means one */
	const void *event; /* WIRE_HANDLE_BYTES, or NULL */
	const void *meta;
	uint16_t meta_len;
	unsigned lifetime; /* WIRE_LIFETIME_* */
	uint64_t ttl_ns;
};
/* rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 100) */
#define rc_place(rc, seg, placed, ...)                                                             \
	rc_place_as(rc, seg, placed, &(const struct raw_place){ __VA_ARGS__ })
int rc_place_as(struct raw *rc, const struct wire_segment_ref *seg, struct wire_placed *placed,
		const struct raw_place *place);
void rc_finished(struct raw *rc, uint64_t ref, bool failed);
/* The first device with a number of at least @from. Returns false if there is none. */
bool rc_device(struct raw *rc, uint32_t from, struct wire_device *device);
