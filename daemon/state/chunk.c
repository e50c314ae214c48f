/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: sets them aside, writes and reads chains of them; see catalog.h. Loop thread only. */
#include <assert.h>
#include <string.h>

#include "daemon/state/catalog.h"

uint32_t catalog_chunks_for(size_t bytes)
{
	return (uint32_t)((bytes + CATALOG_CHUNK_BYTES - 1) / CATALOG_CHUNK_BYTES);
}

int catalog_chunks_reserve(struct catalog *cat, uint32_t count)
{
	int r = catalog_prepare(cat, &cat->chunks, cat->chunks_reserved + count);

	if (!r)
		cat->chunks_reserved += count;
	return r;
}

void catalog_chunks_unreserve(struct catalog *cat, uint32_t count)
{
	assert(count <= cat->chunks_reserved);
	cat->chunks_reserved -= count;
}

static void chunk_append(struct catalog *cat, struct chunk_end *end)
{
	uint32_t index;
	int r;

	assert(cat->chunks_reserved);
	cat->chunks_reserved--;
	r = catalog_take(cat, &cat->chunks, &index);
	assert(r == 0); /* it was reserved */
	(void)r;
	catalog_chunk(cat, index)->next = CATALOG_NONE;
	if (end->last == CATALOG_NONE)
		end->first = index;
	else
		catalog_chunk(cat, end->last)->next = index;
	end->last = index;
	end->fill = 0;
	end->count++;
}

void catalog_chunks_write(struct catalog *cat, struct chunk_end *end, const void *data, size_t size)
{
	const unsigned char *from = data;
	size_t part;

	while (size) {
		if (end->last == CATALOG_NONE || end->fill == CATALOG_CHUNK_BYTES)
			chunk_append(cat, end);
		part = CATALOG_CHUNK_BYTES - end->fill;
		part = part < size ? part : size;
		memcpy(catalog_chunk(cat, end->last)->bytes + end->fill, from, part);
		end->fill += (uint32_t)part;
		from += part;
		size -= part;
	}
}

void catalog_chunks_read(const struct catalog *cat, uint32_t first, void *data, size_t size)
{
	unsigned char *to = data;
	size_t part;

	for (; size; first = catalog_chunk(cat, first)->next) {
		part = size < CATALOG_CHUNK_BYTES ? size : CATALOG_CHUNK_BYTES;
		memcpy(to, catalog_chunk(cat, first)->bytes, part);
		to += part;
		size -= part;
	}
}

void catalog_chunks_give(struct catalog *cat, uint32_t first)
{
	uint32_t next;

	for (; first != CATALOG_NONE; first = next) {
		next = catalog_chunk(cat, first)->next;
		catalog_give(&cat->chunks, first);
	}
}
