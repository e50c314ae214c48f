/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: the shared-memory table that the daemon writes and every client maps read-only.
 * Here: its memory, and taking and giving back entries of its arrays. What they mean is written by
 * name.c, tensor.c, lease.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/catalog_layout.h"

enum { CATALOG_E_FULL = 1 };

/* One array of the catalog. Entries are used from the start, so that what was never used is never
 * allocated. */
struct catalog_array {
	unsigned char *base;
	uint64_t offset; /* in the object */
	size_t entry_size;
	uint64_t allocated; /* bytes from the start of the array */
	uint32_t max;
	uint32_t high; /* entries from here on were never used */
	uint32_t free; /* head of the list of free ones below high, or CATALOG_NONE */
	uint32_t in_use;
	uint32_t *next; /* of the free list */
};

struct catalog {
	struct catalog_header *header;
	uint64_t instance;
	uint64_t size;
	int fd_rw;
	int fd_ro; /* what clients get */
	_Atomic uint64_t *client_words;
	_Atomic uint32_t *buckets;
	struct catalog_array clients, names, rows, segments, chunks;
	uint32_t chunks_reserved;
};

struct catalog_limits {
	uint32_t max_tensors;
	uint32_t max_clients;
	uint64_t capacity;
};

/* Creates the catalog of a new instance. -ENOSPC, -EMFILE, -ENOMEM. */
int catalog_init(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits);
/* Tells all clients that nobody serves this catalog any more, and removes it. */
void catalog_deinit(struct catalog *cat);
/* The same for the catalog of a dead instance, whatever state it is in. */
void catalog_end_foreign(uint64_t instance);

static inline struct catalog_row *catalog_row(const struct catalog *cat, uint32_t slot)
{
	return (struct catalog_row *)(void *)cat->rows.base + slot;
}

static inline struct catalog_name *catalog_name(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_name *)(void *)cat->names.base + index;
}

static inline struct catalog_segment *catalog_segment(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_segment *)(void *)cat->segments.base + index;
}

static inline struct catalog_chunk *catalog_chunk(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_chunk *)(void *)cat->chunks.base + index;
}

/* An entry of its own. 0, CATALOG_E_FULL: no more of them, or -ENOSPC: no memory for them in
 * /dev/shm. */
int catalog_take(struct catalog *cat, struct catalog_array *array, uint32_t *index);
void catalog_give(struct catalog_array *array, uint32_t index);
/* Makes sure that @more further takes will not fail. As catalog_take(). */
int catalog_prepare(struct catalog *cat, struct catalog_array *array, uint32_t more);

/* Chunks that hold @bytes. */
uint32_t catalog_chunks_for(size_t bytes);
/* Sets chunks aside, to be taken by catalog_chunks_write(); as catalog_take(). */
int catalog_chunks_reserve(struct catalog *cat, uint32_t count);
void catalog_chunks_unreserve(struct catalog *cat, uint32_t count);
/* Writes a chain from reserved chunks; its first, and the chunk and byte where the next write goes
 * on, in *end. */
struct chunk_end {
	uint32_t first;
	uint32_t last;
	uint32_t fill;
	uint32_t count;
};
void catalog_chunks_write(struct catalog *cat, struct chunk_end *end, const void *data,
			  size_t size);
/* Copies @size bytes out of the chain at @first. */
void catalog_chunks_read(const struct catalog *cat, uint32_t first, void *data, size_t size);
void catalog_chunks_give(struct catalog *cat, uint32_t first);

/* After a commit of a name with that hash: its sleepers wake. */
void catalog_wake(struct catalog *cat, uint32_t hash);
