/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a session has mapped: for each segment of the catalog one read-only mapping of all of it
 * and, where this client produces, one writable mapping. Both are valid for one generation of the
 * segment, and stay until the catalog says that it is gone. Any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/session.h"

struct mapping {
	_Atomic uint32_t generation; /* of base; 0: none. Stored after base, taken away before it */
	uint32_t write_generation; /* of write_base, or of write_fd until that is mapped; 0: none */
	const void *base;	   /* read-only */
	void *write_base;
	uint64_t size, write_size;
	int write_fd;		 /* + 1; 0: none */
	int cow_fd;		 /* + 1: read-only, kept for copy-on-write mappings; 0: none */
	uint32_t cow_generation; /* of cow_fd */
	bool known;		 /* in session->known */
};

int mappings_init(struct session *s);
void mappings_deinit(struct session *s);

/* In a forked child: the parent's writable mappings are not ours (they were not inherited). */
void mappings_forget_writable(struct session *s);

/*
 * The segment's bytes, or NULL. The caller holds a lease on a tensor in that segment, or has seen
 * it written: such a mapping is not removed.
 *
 * ORDER: acquire pairs with the release in install(): who sees the generation sees its base.
 */
static inline const unsigned char *mapping_find(const struct session *s, uint32_t segment,
						uint32_t generation)
{
	const struct mapping *m = &s->mappings[segment];

	if (atomic_load_explicit(&m->generation, memory_order_acquire) != generation)
		return NULL;
	return m->base;
}

/*
 * The same, asking the daemon for it if there is none; the caller holds @ref. 0, SESSION_E_*, or a negative errno.
 */
int mapping_read(struct session *s, uint64_t ref, uint32_t segment, uint32_t generation,
		 int64_t deadline, const unsigned char **base);

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

/* The writable bytes of a draft's segment. 0, or a negative errno. */
int mapping_write(struct session *s, const struct wire_draft *draft, unsigned char **base);

/* Which segment @p lies in, of those mapped read-only; false: none. */
bool mapping_locate(struct session *s, const void *p, uint32_t *segment, uint32_t *generation,
		    uint64_t *offset);
