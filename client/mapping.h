/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a session has mapped: for each segment of the catalog one read-only mapping of all of it
 * and, where this client produces, one writable mapping. Both are valid for one generation of the
 * segment, and stay until the catalog says that it is gone and nothing of ours lies in them: the
 * daemon's word alone never unmaps what a lease or a draft points to. Any thread.
 */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/session.h"

/* Where drafts are written. Unmapped when the last of them, and its segment, let go of it. */
struct write_map {
	void *base;
	uint64_t size;
	unsigned refs; /* mapping_mutex */
};

/* What a get reads is in one cache line. */
struct mapping {
	alignas(64) _Atomic uint32_t generation; /* of base and size; 0: none. Stored after them,
						    taken away before */
	_Atomic uint32_t leases; /* counted ones in base; the others are found by lease_objects.c */
	const void *base;	 /* read-only */
	uint64_t size;
	struct write_map *write;   /* NULL: not mapped yet */
	uint64_t write_size;	   /* of write_fd */
	uint32_t write_generation; /* of write, or of write_fd until that is mapped; 0: none */
	int write_fd;		   /* + 1; 0: none */
	int cow_fd;		   /* + 1: read-only, kept for copy-on-write mappings; 0: none */
	uint32_t cow_generation;   /* of cow_fd */
	bool known;		   /* in session->known */
};
static_assert(sizeof(struct mapping) == 64, "a cache line");

/*
 * May @size bytes of what the daemon gave us as @what be mapped? A regular file, not of hugetlbfs,
 * that has them; that it keeps them nobody can say. 0, or a negative errno.
 */
int mapping_check_fd(int fd, uint64_t size, const char *what);

int mappings_init(struct session *s);
void mappings_deinit(struct session *s);

/* In a forked child: the parent's writable mappings are not ours (they were not inherited). */
void mappings_forget_writable(struct session *s);

/*
 * The segment's bytes, how many there are, or NULL. The caller has said so in a lease object
 * (lease_objects.h), or counted itself in `leases`: such a mapping is not removed.
 *
 * ORDER: acquire pairs with the release in install(): who sees the generation sees its base and
 * size. That we use the mapping was written before; users_fence() and drop_read() have the rest.
 */
static inline const unsigned char *mapping_find(const struct mapping *m, uint32_t generation,
						uint64_t *size)
{
	if (atomic_load_explicit(&m->generation, memory_order_acquire) != generation)
		return NULL;
	*size = m->size;
	return m->base;
}

/*
 * Sees to it that mapping_find() has the segment, asking the daemon for it if need be; the caller
 * holds @ref. 0, SESSION_E_*, or a negative errno.
 */
int mapping_read(struct session *s, uint64_t ref, uint32_t segment, uint32_t generation,
		 int64_t deadline);

/*
 * A private writable mapping of @size bytes at @offset: unmap *@map, *@map_size. As mapping_read().
 */
struct private_map {
	void *map;
	size_t map_size;
	void *data; /* at @offset of the segment */
};

int mapping_private(struct session *s, uint64_t ref, uint32_t segment, uint32_t generation,
		    uint64_t offset, uint64_t size, int64_t deadline, struct private_map *out);

/*
 * Takes the descriptor that came with a draft. By the thread that reads the socket, in the order of
 * arrival.
 */
void mapping_keep_draft_fd(struct session *s, const struct wire_draft *draft, int fd_take);

/*
 * The writable bytes of a draft's segment, which has the size that the draft says. They stay until
 * mapping_write_end(). 0, or a negative errno.
 */
int mapping_write(struct session *s, const struct wire_draft *draft, struct write_map **out);
void mapping_write_end(struct session *s, struct write_map *map); /* NULL is fine */

/* Which segment @p lies in, of those mapped read-only; false: none. */
bool mapping_locate(struct session *s, const void *p, uint32_t *segment, uint32_t *generation,
		    uint64_t *offset);
