/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: shared-memory objects that hold the bytes of one large tensor or of many small ones of
 * one producer. The caller makes and destroys their pages (object.h), perhaps on another thread.
 * Memory on a device (device.h) is a segment too, of which we have only the numbers.
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
	SEGMENT_SMALL_FIRST = 64 << 10,	 /* size of a producer's first segment for small tensors */
	SEGMENT_SMALL_LIMIT = 4 << 20,	 /* each next one is twice as large, up to this */
	SEGMENT_WARM_MAX = 256,		 /* segments kept warm */
};

/*
 * The life of a segment. segment_become() in segment.c is the only writer of segment.state.
 *
 *            segment_live()       segment_keep_warm()
 *     NEW ------------------> LIVE <----------------> WARM
 *      |                       |    segment_take_warm() |
 *      |                       |    segment_pop_warm()  |
 *      +-----------------------+------------------------+--> DOOMED
 *                                            segment_doom()
 *
 * segment_free() ends a segment in any state but WARM.
 */
enum segment_state {
	SEGMENT_NEW,	/* charged; its object is being made, or its parts are still arriving */
	SEGMENT_LIVE,	/* tensors are in it, or its writer fills it */
	SEGMENT_WARM,	/* empty, and kept for the next tensor of its size; in store.warm */
	SEGMENT_DOOMED, /* no tensor is in it and none will be; shared memory is in store.doomed */
};

struct segment_store {
	uint64_t instance;
	struct quota quota;
	struct list warm;   /* of struct segment, by link; least recently used first */
	struct list doomed; /* of struct segment, by link; the caller destroys their objects and
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
	enum segment_state state;
	struct list link;	 /* in store.warm or store.doomed */
	struct list writer_link; /* in its writer's segments while it has one */
	struct object object;
	struct quota_charge charge;
	struct guarded guarded;	      /* from when a writable descriptor was handed out */
	struct device_memory *device; /* NULL: it is shared memory */
	uint64_t size;
	uint64_t writer;     /* id of the client that maps it writable; 0: it has left */
	uint64_t warm_since; /* monotonic ns */
	uint32_t index;	     /* in the catalog */
	uint32_t generation;
	uint32_t places;  /* tensors in it, drafts included */
	int fd_ro;	  /* cached, or -1 */
	uint32_t units;	  /* 0: it is not for small tensors, and has none of what follows */
	uint32_t hint;	  /* where the last search ended */
	uint32_t max_run; /* no run of free units is longer */
	uint64_t used[];  /* one bit for each unit */
};

static inline bool segment_is_small(const struct segment *seg)
{
	return seg->units != 0;
}

void segment_store_init(struct segment_store *store, uint64_t instance, uint64_t capacity,
			uint64_t user_capacity, unsigned fds_max);
void segment_store_deinit(struct segment_store *store);

/*
 * A segment of @size bytes (a multiple of the page size), charged to @user, its object not created
 * yet. 0, SEGMENT_E_FULL, SEGMENT_E_USER or -ENOMEM.
 */
int segment_new(struct segment **segp, struct segment_store *store, struct quota_user *user,
		uint64_t size, bool small);
/* A segment of @size bytes that owns @memory_take, which is freed on failure. -ENOMEM. */
int segment_new_on_device(struct segment **segp, struct segment_store *store,
			  struct device_memory *memory_take, uint64_t size);
/* Gives the charge back. Its object has been destroyed or was never made. */
struct segment *segment_free(struct segment *seg);

/* Its object has been made, or all of its parts have arrived. */
void segment_live(struct segment *seg);

/* Its writer has been given a writable descriptor: its size is guarded from now on. */
void segment_handed(struct segment *seg);
/* Has its present writer been given one? */
bool segment_is_handed(const struct segment *seg);

/* Opens its object for reading, once, so that the next client to map it need not wait for that. */
void segment_cache(struct segment *seg);
/* Opens a descriptor of its object, which the caller closes. */
int segment_descriptor(const struct segment *seg, bool writable, int *fd);

/* Takes room for @nbytes in a small segment. SEGMENT_E_NO_ROOM. */
int segment_place_take(struct segment *seg, uint64_t nbytes, uint64_t *offset);
void segment_place_give(struct segment *seg, uint64_t offset, uint64_t nbytes);

/* Keeps an empty segment for the next tensor of its size. The caller keeps to the bounds. */
void segment_keep_warm(struct segment *seg, uint64_t now);
/* Takes a warm segment that fits @size and that the client @writer of @user may write. NULL: none.
 */
struct segment *segment_take_warm(struct segment_store *store, const struct quota_user *user,
				  uint64_t writer, uint64_t size);
/* Takes the least recently used warm segment of @user (NULL: of anyone). NULL: there is none. */
struct segment *segment_pop_warm(struct segment_store *store, const struct quota_user *user);

/* No tensor is in it and none will be. Nothing happens the second time. */
void segment_doom(struct segment *seg);
