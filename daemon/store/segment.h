/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: shared-memory objects that hold the bytes of one large tensor or of many small ones of
 * one producer. Making and destroying their pages (object.h) is left to the caller, who may do it
 * on another thread. And memory on devices (device.h), of which a segment is little but the number.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/device.h"
#include "daemon/store/guard.h"
#include "daemon/store/object.h"
#include "daemon/store/quota.h"
#include "tensor/limits.h"
#include "util/list.h"

enum { SEGMENT_E_FULL = QUOTA_E_FULL, SEGMENT_E_USER = QUOTA_E_USER, SEGMENT_E_NO_ROOM };

enum {
	SEGMENT_UNIT = TENSOR_ALIGNMENT, /* bytes; places in small segments are multiples of it */
	SEGMENT_SMALL_MAX = 64 << 10,	 /* larger tensors have a segment of their own */
	SEGMENT_SMALL_FIRST = 64 << 10,	 /* size of a producer's first segment for small tensors;
					    they double */
	SEGMENT_SMALL_LIMIT = 4 << 20,	 /* up to this */
	SEGMENT_WARM_MAX = 256,		 /* segments kept warm */
};

struct segment_store {
	uint64_t instance;
	struct quota quota;
	struct list warm;   /* of struct segment, by link; least recently used first */
	struct list doomed; /* of struct segment, by link; the caller destroys their objects, then
			       frees them */
	unsigned going;	    /* doomed and not freed yet: their room will be back soon */
	uint64_t warm_bytes;
	uint64_t warm_max;
	unsigned warm_count;
	unsigned fds_cached;
	unsigned fds_max;
	struct guard guard;
};

struct segment {
	struct segment_store *store; /* outlives us */
	struct list link;	     /* warm or doomed */
	struct list writer_link;     /* in its writer's segments while it has one */
	struct object object;
	struct quota_charge charge;
	struct guarded guarded;	      /* from when a writable descriptor was handed out */
	struct device_memory *device; /* NULL: it is shared memory */
	uint64_t size;
	uint64_t writer;     /* id of the client that maps it writable; 0: none any more */
	uint64_t warm_since; /* monotonic ns */
	uint32_t index;	     /* in the catalog */
	uint32_t generation;
	uint32_t places; /* tensors in it, drafts included */
	int fd_ro;	 /* cached, or -1 */
	bool small;
	bool handed; /* its writer has been given a writable descriptor */
	bool warm;
	bool doomed;
	/* small segments only: */
	uint32_t units;
	uint32_t hint;	  /* where the last search ended */
	uint32_t max_run; /* no run of free units is longer */
	uint64_t used[];  /* a bit a unit */
};

void segment_store_deinit(struct segment_store *store);
/* Its writer has been given a writable descriptor. */
void segment_handed(struct segment *seg);
void segment_store_init(struct segment_store *store, uint64_t instance, uint64_t capacity,
			uint64_t user_capacity, unsigned fds_max);

/*
 * A segment of @size bytes (a multiple of the page size), charged to @user, its object not created
 * yet. 0, SEGMENT_E_FULL, SEGMENT_E_USER or -ENOMEM.
 */
int segment_new(struct segment **segp, struct segment_store *store, struct quota_user *user,
		uint64_t size, bool small);
/* A segment of @size bytes that is @memory_take, which it owns (freed on failure). -ENOMEM. */
int segment_new_on_device(struct segment **segp, struct segment_store *store,
			  struct device_memory *memory_take, uint64_t size);
/* After its object is destroyed, or was never made: gives the charge back. */
struct segment *segment_free(struct segment *seg);

/* Opens its object for reading, once, so that the next client to map it need not wait for that. */
void segment_cache(struct segment *seg);
/* A descriptor of its object for the caller to close. */
int segment_descriptor(const struct segment *seg, bool writable, int *fd);

/* Room for @nbytes in a small segment; SEGMENT_E_NO_ROOM. Giving it back makes it usable again. */
int segment_place_take(struct segment *seg, uint64_t nbytes, uint64_t *offset);
void segment_place_give(struct segment *seg, uint64_t offset, uint64_t nbytes);

/* Keeps an empty segment for the next tensor of its size. The caller sees to the bounds. */
void segment_keep_warm(struct segment *seg, uint64_t now);
/* A warm segment that serves @size for the client @writer of @user, taken out of the warm ones; or
 * NULL. */
struct segment *segment_take_warm(struct segment_store *store, const struct quota_user *user,
				  uint64_t writer, uint64_t size);
/* The least recently used warm segment of @user (NULL: of anyone), taken out; or NULL. */
struct segment *segment_pop_warm(struct segment_store *store, const struct quota_user *user);

/* No tensor is in it and none will be: its object is to be destroyed. */
void segment_doom(struct segment *seg);
