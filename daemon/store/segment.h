/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: shared-memory objects that hold the bytes of one large tensor or of many small ones of
 * one producer. The caller makes and destroys their pages (object.h), perhaps on another thread.
 * Memory on a device (device_memory.h) is a segment too, of which the daemon has only the numbers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/account.h"
#include "daemon/store/device_memory.h"
#include "daemon/store/guard.h"
#include "daemon/store/memfd.h"
#include "daemon/store/object.h"
#include "tensor/limits.h"
#include "util/list.h"

enum { SEGMENT_E_NO_SPACE = 1, SEGMENT_E_STRANGE };

enum {
	SEGMENT_UNIT = TENSOR_ALIGNMENT, /* bytes; extents in small segments are multiples of it */
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
 *      +-----------------------+------------------------+--> TO_DESTROY
 *                                            segment_to_destroy()
 *
 * segment_free() ends a segment in any state but WARM.
 */
enum segment_state {
	SEGMENT_NEW,	    /* charged; its object is being made, or its parts are still arriving */
	SEGMENT_LIVE,	    /* tensors are in it, or its writer fills it */
	SEGMENT_WARM,	    /* empty, and kept for the next tensor of its size; in store.warm */
	SEGMENT_TO_DESTROY, /* no tensor is or will be in it; shared memory is in to_destroy */
};

/* The store's use by one namespace. */
struct segment_totals {
	struct pool pool; /* of bytes, within the store's */
	uint64_t warm;
	uint64_t kept;	/* bytes of ended segments that are still open in other processes */
	unsigned going; /* its part of the store's */
	const struct storage *storage;
	struct pool *descriptors; /* if objects have no names, each takes one */
};

struct segment_store {
	struct pool pool; /* of bytes */
	/* of struct segment, by link */
	struct list warm;	/* least recently used first */
	struct list forgetting; /* to destroy; the keeper has their objects open; oldest first */
	struct list to_destroy; /* the caller destroys their objects and frees them */
	struct list closed;	/* we have closed their objects */
	struct list kept;	/* other processes still have them open */
	struct list held; /* their pages cannot be freed yet, because of others: store.guard.held */
	struct list spoiled; /* live; their producers have changed their sizes again */
	uint64_t again_ns;   /* when to try the held ones again; 0: there are none */
	unsigned going;	     /* to destroy, neither freed nor kept: their space will be free soon */
	uint64_t emptied;    /* counts those whose memory was given back to the kernel */
	uint64_t warm_bytes;
	uint64_t warm_max;
	unsigned warm_count, fds_cached, fds_max;
	struct guard guard; /* of the sizes of objects with names */
	struct remnants remnants;
	struct memfd_watches memfd_watches; /* of objects without names */
};

struct segments;

struct segment {
	struct segment_store *store;   /* outlives us */
	struct segment_totals *totals; /* of its namespace, outlive us */
	struct segments *segments;     /* of its namespace: state/segments.c */
	enum segment_state state;
	struct list link;	 /* in store.warm, or a list below it */
	struct list writer_link; /* in its writer's segments while it has one */
	struct list holdings;	 /* state/holding.c: clients that map it */
	const struct storage *storage;
	struct object object;
	struct charge charge;	      /* of its bytes */
	struct account *owner;	      /* the bytes' owner while a holder is charged; ref held */
	struct charge entry;	      /* of its entry in the catalog: state/segments.c */
	struct charge descriptor;     /* of our descriptor of an object without a name */
	struct guarded guarded;	      /* from when a writable descriptor was handed out */
	struct memfd_watch ending;    /* if its object has no name */
	bool sealed;		      /* only its writer has it mapped writable, for ever */
	bool once;		      /* not reused when it is empty */
	bool kept;		      /* others still have it: from store.kept or .held on */
	uint64_t forget;	      /* in store.forgetting: keeper->forgets after that call */
	uint32_t spoiled;	      /* in store.spoiled: the row to look at next */
	struct device_memory *device; /* NULL: it is shared memory */
	uint64_t size;
	uint64_t writer;	    /* id of the client that maps it writable; 0: it has left */
	uint32_t writer_index;	    /* of that client in the catalog */
	uint64_t warm_since;	    /* monotonic ns */
	uint32_t index, generation; /* in the catalog */
	uint32_t extents;	    /* tensors in it, drafts included */
	int fd_ro;		    /* cached, or -1 */
	uint32_t units;		    /* 0: not for small tensors, and without the members below */
	uint32_t hint;		    /* where the last search ended */
	uint32_t max_run;	    /* no run of free units is longer */
	uint64_t used[];	    /* one bit for each unit */
};

static inline bool segment_is_small(const struct segment *seg)
{
	return seg->units != 0;
}

void segment_store_init(struct segment_store *store, struct accounts *accounts, uint64_t capacity,
			unsigned fds_max);
void segment_store_deinit(struct segment_store *store);
/* Prepares for segments of that storage. Returns -EMFILE or -ENOMEM if there is no inotify, which a
 * storage without names needs. */
int segment_store_use(struct segment_store *store, const struct storage *storage);

/* Makes a segment of @size bytes (of whole pages) in the namespace @totals of @instance, charged to
 * @user, without an object yet. 0, -ENOMEM, or an outcome of account_take(). */
int segment_new(struct segment **segp, struct segment_store *store, struct segment_totals *totals,
		uint64_t instance, struct account *user, uint64_t size, bool small);
/*
 * Makes a segment from the object that a former daemon made for @user, which is taken on success.
 * It has no writer, and is not reused when empty if it has holes. SEGMENT_E_STRANGE: the object is
 * wrong; else fails as segment_new() does.
 */
int segment_adopt(struct segment **segp, struct segment_store *store, struct segment_totals *totals,
		  const struct object *object, struct account *user, uint64_t size, bool small);
/* Takes the extent of an adopted tensor, which no other tensor has. */
int segment_extent_adopt(struct segment *seg, uint32_t unit, uint32_t units);
/* Makes a segment of @size bytes that owns @segments_take, which is freed on failure. -ENOMEM. */
int segment_new_on_device(struct segment **segp, struct segment_store *store,
			  struct device_memory *segments_take, uint64_t size);
/* Frees the segment and gives its charge back. To be called when its object has been destroyed or
 * was never made. */
struct segment *segment_free(struct segment *seg);
/* Takes over the segment's object, which is destroyed on failure. Fails as memfd_watch_begin()
 * does. */
int segment_made(struct segment *seg, struct object *object_take);
/* To be called when its object has been made, or all of its parts have arrived. */
void segment_live(struct segment *seg);
/* To be called before its writer is given a descriptor: its size is guarded from now on. */
void segment_handed(struct segment *seg);
/* Undoes segment_handed(): the writer does not have the descriptor. */
void segment_not_handed(struct segment *seg);
/* True if the present writer has been given a descriptor. */
bool segment_is_handed(const struct segment *seg);
/* False if its storage has seals, and its writer has not sealed it against writing yet. */
bool segment_is_sealed(struct segment *seg);
/* Opens its object for reading, once: for the next client to map it, and if its name is removed. */
void segment_cache(struct segment *seg);
/* Opens a descriptor of its object, which the caller closes. */
int segment_descriptor(const struct segment *seg, bool writable, int *fd);
/* Takes an extent of @nbytes from a small segment. SEGMENT_E_NO_SPACE. */
int segment_extent_take(struct segment *seg, uint64_t nbytes, uint64_t *offset);
void segment_extent_give(struct segment *seg, uint64_t offset, uint64_t nbytes);
/* Charges @holder for an extent of @bytes, or the segment, until segment_return_extent(). */
void segment_charge_extent(struct segment *seg, struct account *holder, uint64_t bytes);
void segment_return_extent(struct segment *seg, struct account *holder, uint64_t bytes);
/* Keeps an empty segment for the next tensor of its size. The caller ensures the limits. */
void segment_keep_warm(struct segment *seg, uint64_t now);
bool segment_is_unused(const struct segment *seg); /* nobody can write it; it has no holes */
/* Takes a warm segment of the namespace @totals that fits @size and that the client @writer of
 * @user may write. NULL: none. */
struct segment *segment_take_warm(struct segment_store *store, const struct segment_totals *totals,
				  const struct account *user, uint64_t writer, uint64_t size);
/* Takes the least recently used warm segment of the namespace @totals (NULL: of any) and of @user
 * (NULL: of the user with the most there). NULL: there is none. */
struct segment *segment_pop_warm(struct segment_store *store, const struct segment_totals *totals,
				 const struct account *user);
/* Marks a segment, which is empty and stays so, to be destroyed. May be called twice. */
void segment_to_destroy(struct segment *seg);
/* The keeper has its object open until keeper_link_forgotten() is @forget. It must not be the last
 * to close it, which may take long, so we close ours after that. */
void segment_wait_for_keeper(struct segment *seg, uint64_t forget);
/* To be called when keeper_link_forgotten() is @forgotten. */
void segments_forgotten(struct segment_store *store, uint64_t forgotten);
/* The object of a segment to destroy was discarded. True: the caller frees the segment. False:
 * segment_next_ended() returns it later. */
bool segment_discarded(struct segment *seg);
/* The object of a segment to destroy could not be discarded, and stays charged. */
void segment_hold_back(struct segment *seg);
/* Tries the held segments again, if it is time to. Returns when to call next; 0: there are none. */
uint64_t segments_again(struct segment_store *store, uint64_t now);
/* Marks the segment's tensors as spoiled. To be called when its size was changed again: they cannot
 * be relied on. */
void segment_spoil(struct segment *seg);
/* The next segment to be freed, since no process has its object any more; NULL: none for now. Looks
 * at *@max events at most and counts them there. */
struct segment *segment_next_ended(struct segment_store *store, unsigned *max);
/* Once all events are read: a discarded segment that a process still has open, or NULL. */
struct segment *segment_next_kept(struct segment_store *store);
