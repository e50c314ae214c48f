/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: the shared-memory table that the daemon writes and every client maps read-only. This
 * file keeps its memory, and takes and gives back entries of its arrays; the files above it write
 * what the entries mean.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/catalog_layout.h"

enum { CATALOG_E_FULL = 1 };

/* One array of the catalog. The lowest entries are used first, so that memory is only allocated for
 * those that were ever used. */
struct catalog_array {
	unsigned char *base;
	uint64_t offset; /* in the object */
	size_t entry_size;
	uint64_t allocated; /* bytes from the start of the array */
	uint32_t max;
	uint32_t high; /* entries from here on were never used */
	uint32_t free; /* head of the list of free entries below high, or CATALOG_NONE */
	uint32_t in_use;
	uint32_t *next; /* links of the free list */
};

struct catalog {
	struct catalog_header *header;
	uint64_t instance;
	uint64_t size;
	int fd_rw;
	int fd_ro; /* clients get this one */
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
/* Tells the clients of a dead instance, whatever state its catalog is in. */
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

/* Takes an entry. CATALOG_E_FULL: all are taken; -ENOSPC: /dev/shm is full. */
int catalog_take(struct catalog *cat, struct catalog_array *array, uint32_t *index);
void catalog_give(struct catalog_array *array, uint32_t index);
/* Makes sure that the next @more takes will not fail. Fails as catalog_take() does. */
int catalog_prepare(struct catalog *cat, struct catalog_array *array, uint32_t more);

/* How many chunks hold @bytes. */
uint32_t catalog_chunks_for(size_t bytes);
/* Sets chunks aside for catalog_chunks_write(). Fails as catalog_take() does. */
int catalog_chunks_reserve(struct catalog *cat, uint32_t count);
void catalog_chunks_unreserve(struct catalog *cat, uint32_t count);
/* The first chunk of a chain, and the chunk and byte where the next write continues. */
struct chunk_end {
	uint32_t first;
	uint32_t last;
	uint32_t fill;
	uint32_t count;
};
/* Appends to a chain, with chunks that were set aside. */
void catalog_chunks_write(struct catalog *cat, struct chunk_end *end, const void *data,
			  size_t size);
/* Copies @size bytes out of the chain at @first. */
void catalog_chunks_read(const struct catalog *cat, uint32_t first, void *data, size_t size);
void catalog_chunks_give(struct catalog *cat, uint32_t first);

/* Wakes the clients that wait for a name with that hash. */
void catalog_wake(struct catalog *cat, uint32_t hash);
