/* SPDX-License-Identifier: Apache-2.0 */
/* Connections in order of the ids of their clients, so that none is searched among all. */
#pragma once

#include <stdint.h>

struct peer;

/* Ids only grow, so that a new one comes last. */
struct peer_index {
	struct peer_entry {
		uint64_t id;
		struct peer *peer;
	} * entries;
	unsigned count, room;
};

/* Makes room for one more. -ENOMEM */
int index_reserve(struct peer_index *index);
/* There is room, and @id is greater than all others. */
void index_add(struct peer_index *index, uint64_t id, struct peer *peer);
/* Nothing happens if @id is not there. */
void index_remove(struct peer_index *index, uint64_t id);
/* The place of the first whose id is greater than @id; index->count: there is none. */
unsigned index_after(const struct peer_index *index, uint64_t id);
/* NULL: it is not there. */
struct peer *index_find(const struct peer_index *index, uint64_t id);
void index_deinit(struct peer_index *index);
