/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of the catalog hold data that does not fit into a row or the entry of a name. */
#pragma once

#include "daemon/state/catalog.h"

/* The number of chunks that hold @bytes. */
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
