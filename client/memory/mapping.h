/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mappings of a session. Each segment of the catalog has one read-only mapping of all of it
 * and, where this client produces, one writable mapping. Both are valid for one generation of the
 * segment. They stay until the catalog says that it has ended, or the process has very many, and no
 * lease or draft of ours lies in them: the daemon's word alone never unmaps memory that these point
 * to. Descriptors come from the caller, since this file knows no connection. Any thread.
 */
#pragma once

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/memory/catalog.h"
#include "client/memory/lease_objects.h"
#include "proto/wire.h"
#include "util/list.h"

/* A writable mapping, for drafts. Unmapped when the last draft in it and its segment have let go of
 * it. */
struct write_map {
	struct list link; /* among the writable ones of a session; mutex of its struct mappings */
	void *base;
	uint64_t size;
	unsigned refs; /* under the same mutex */
	/* The view that a child forked now gets there. */
	enum write_view { WRITE_VIEW_NONE, WRITE_VIEW_READ, WRITE_VIEW_ALL } inherit;
	/* In a forked child: the memory is the parent's. Nothing is mapped here, or only memory
	 * that cannot be used. */
	bool left_out;
};

/* The members that a get reads are in one cache line. */
struct mapping {
	alignas(64) _Atomic uint32_t generation; /* of base and size; 0: none. Stored after them,
						    taken away before */
	struct leased leased;			 /* its users: leases that lie in base */
	const void *base;			 /* read-only */
	uint64_t size;
	struct write_map *write;   /* NULL: not mapped yet */
	uint64_t write_size;	   /* size of write_fd */
	uint32_t write_generation; /* of write, or of write_fd until that is mapped; 0: none */
	int write_fd;		   /* + 1; 0: none */
	int cow_fd;		   /* + 1: read-only, kept for copy-on-write mappings; 0: none */
	uint32_t cow_generation;   /* of cow_fd */
	bool known;		   /* in mappings->known */
	bool let_go;		   /* write was, though the segment lives */
};
static_assert(sizeof(struct mapping) == 64, "a cache line");

enum { MAPPINGS_COW_FDS = 32 };

/* The mappings of a session. */
struct mappings {
	struct mapping *table; /* by segment */
	const struct catalog_view *catalog;
	pthread_mutex_t mutex;	/* never held over a request */
	struct list write_maps; /* all that exist */
	uint32_t *known;	/* segments with a mapping or a descriptor, for the sweep */
	uint32_t nknown, sweep;
	unsigned long count, most; /* read-only and writable mappings */
	uint32_t any;		   /* for any_number() */
	unsigned cow_fds;
	_Atomic bool sealed;	   /* a sealed segment was seen: mappings_let_go() has work to do */
	_Atomic uint64_t let_gone; /* how often an ended segment was let go of */
};

/* The mutex is usable from mappings_init() to mappings_free(), whatever the other two did. */
void mappings_init(struct mappings *ms);
int mappings_alloc(struct mappings *ms, const struct catalog_view *catalog);
void mappings_deinit(struct mappings *ms);
void mappings_free(struct mappings *ms);
/* For a program that has closed our descriptors: none is kept, since their numbers may be others'.
 */
void mappings_lose_descriptors(struct mappings *ms);

enum { MAPPINGS_FEW = 4, MAPPINGS_ALL = INT_MAX, MAPPINGS_SMALL = 4 << 20 };
/*
 * Lets go of sealed segments that the daemon has ended, of @max mappings at most, and of none that
 * has more than @largest bytes. Their memory is charged to their producer until no process maps
 * them. (Memory of other segments is freed in any case.) Does nothing if another thread is changing
 * the mappings.
 */
void mappings_let_ended_go(struct mappings *ms, unsigned max, uint64_t largest);
static inline void mappings_let_go(struct mappings *ms, unsigned max)
{
	mappings_let_ended_go(ms, max, UINT64_MAX);
}
/* The same for all of them, after other threads if need be. True if any were let go of here or
 * elsewhere since @let_gone was what @before says. */
bool mappings_let_go_since(struct mappings *ms, uint64_t before);
/* The same for a release, which must not take long: of few, and none that has much memory. It may
 * be the last to unmap a memfd, whose pages are freed then. */
static inline void mappings_let_small_go(struct mappings *ms)
{
	mappings_let_ended_go(ms, MAPPINGS_FEW, MAPPINGS_SMALL);
}

/*
 * For fork(), under the mutex. The first function is called before the fork: the child shall see
 * the mapping. The others are called after it, in the parent and in the child. In the child,
 * mappings that it shall not see become memory that cannot be used, as long as drafts lie in them:
 * the child's own new mappings must not lie where it has pointers to drafts.
 */
void mapping_inherit_locked(struct write_map *map, enum write_view view);
void mappings_fork_parent(struct mappings *ms);
void mappings_fork_child(struct mappings *ms, bool lost);
/* For tl_close(): ends all writable mappings but those in which there are drafts still. */
void mappings_end_writes(struct mappings *ms);
/* In the child, before that: mapping_write_end() for a draft that the child will not use. */
void mapping_write_forked(struct write_map *map);

/*
 * Returns the segment's bytes and their number, or NULL. The caller must have entered the mapping
 * in a lease object (lease_objects.h), which keeps it from being removed.
 *
 * ORDER: acquire pairs with the release in install(): a reader that sees the generation sees its
 * base and size. The lease object was written before; use_count_fence() and drop_read() order the
 * rest.
 */
static inline const unsigned char *mapping_find(const struct mapping *m, uint32_t generation,
						uint64_t *size)
{
	if (atomic_load_explicit(&m->generation, memory_order_acquire) != generation)
		return NULL;
	*size = m->size;
	return m->base;
}

/* Returns 0 if mapping_find() has the segment, 1 if it is not mapped, -EPROTO if there is no such
 * segment. */
int mapping_known(struct mappings *ms, uint32_t segment, uint32_t generation);
/* Maps the segment, of @size bytes, for mapping_find(). The caller holds a tensor in it. Waits for
 * gets of other threads that are about to let go of what lay there before. Returns 0 or a negative
 * errno. */
int mapping_install(struct mappings *ms, uint32_t segment, uint32_t generation, int fd_peek,
		    uint64_t size, int64_t deadline);

/* A private writable mapping of a part of a segment: unmap @map, @map_size. */
struct private_map {
	void *map;
	size_t map_size;
	void *data; /* at the requested offset */
	bool copied;
};

/* Makes one of @size bytes at @offset, by a descriptor that was kept. Returns 1 if there is none,
 * and the caller must get one for mapping_private_new(); 0; or a negative errno. */
int mapping_private(struct mappings *ms, uint32_t segment, uint32_t generation, uint64_t offset,
		    uint64_t size, struct private_map *out);
/* mapping_private() with a new read-only descriptor, which may be kept. */
int mapping_private_new(struct mappings *ms, uint32_t segment, uint32_t generation, int fd_take,
			uint64_t offset, uint64_t size, struct private_map *out);

/* mapping_private() without a descriptor: copies bytes that are mapped for reading. 1: they are not
 * mapped. */
int mapping_copied(struct mappings *ms, uint32_t segment, uint32_t generation, uint64_t offset,
		   uint64_t size, struct private_map *out);

/* Takes the descriptor that came with a draft. To be called by the thread that reads the socket, in
 * the order of arrival. */
void mapping_keep_draft_fd(struct mappings *ms, const struct wire_draft *draft, int fd_take);

/* The segment's writable mapping was idle and was let go. */
enum { MAPPING_E_LET_GO = 1 << 8 }; /* unlike SESSION_E_x */

/*
 * Maps the writable bytes of a draft's segment, whose size is in @draft. They stay until
 * mapping_write_end(). If they were not mapped yet and may be written by a descriptor too, that is
 * moved to @fd_move; else it stays as it is. NULL: nobody wants it. Returns 0, MAPPING_E_LET_GO, or
 * a negative errno.
 */
int mapping_write(struct mappings *ms, const struct wire_draft *draft, struct write_map **out,
		  int *fd_move);
void mapping_write_again(struct mappings *ms, struct write_map *map); /* one more end is to come */
void mapping_write_end(struct mappings *ms, struct write_map *map);   /* NULL is fine */

/* Keeps a read-only descriptor for mapping_private(), if there is space. */
void mapping_keep_cow(struct mappings *ms, uint32_t segment, uint32_t generation, int fd_take);
/* Calls @visit for all segments that are mapped for reading, or can be by a kept descriptor, until
 * it returns something other than 0. The caller holds the mutex. */
int mappings_each_locked(const struct mappings *ms,
			 int (*visit)(void *context, uint32_t segment, uint32_t generation),
			 void *context);

/* Finds the segment that @p lies in, among those mapped read-only. False: none. */
bool mapping_locate(struct mappings *ms, const void *p, uint32_t *segment, uint32_t *generation,
		    uint64_t *offset);
