/* SPDX-License-Identifier: Apache-2.0 */
/* Connections, sorted by the id of their client; see peer_index.h. Loop thread only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/peer_index.h"

enum { INDEX_FIRST = 64 };

int index_reserve(struct peer_index *index)
{
	unsigned capacity = index->capacity ? index->capacity * 2 : INDEX_FIRST;
	struct peer_entry *grown;

	if (index->count < index->capacity)
		return 0;
	grown = reallocarray(index->entries, capacity, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	index->entries = grown;
	index->capacity = capacity;
	return 0;
}

void index_add(struct peer_index *index, uint64_t id, struct peer *peer)
{
	index->entries[index->count++] = (struct peer_entry){ .id = id, .peer = peer };
}

unsigned index_after(const struct peer_index *index, uint64_t id)
{
	unsigned low = 0, high = index->count, middle;

	while (low < high) {
		middle = low + (high - low) / 2;
		if (index->entries[middle].id > id)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

void index_remove(struct peer_index *index, uint64_t id)
{
	unsigned after = index_after(index, id);
	struct peer_entry *entry;

	if (!after || index->entries[after - 1].id != id)
		return;
	entry = &index->entries[after - 1];
	memmove(entry, entry + 1, (index->count - after) * sizeof(*entry));
	index->count--;
}

struct peer *index_find(const struct peer_index *index, uint64_t id)
{
	unsigned after = index_after(index, id);

	return after && index->entries[after - 1].id == id ? index->entries[after - 1].peer : NULL;
}

void index_deinit(struct peer_index *index)
{
	free(index->entries);
	*index = (struct peer_index){ 0 };
}
