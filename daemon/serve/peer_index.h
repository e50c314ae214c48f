/* SPDX-License-Identifier: Apache-2.0 */
/* Connections by the id of their client. */
#pragma once

#include <stdint.h>

struct peer;

/* Ids only grow, so that a new peer comes last. */
struct peer_index {
	struct peer_entry {
		uint64_t id;
		struct peer *peer;
	} * entries;
	unsigned count, capacity;
};

/* Makes space for one more peer. -ENOMEM. */
int index_reserve(struct peer_index *index);
/* Adds the peer. There must be space, and @id must be greater than all others. */
void index_add(struct peer_index *index, uint64_t id, struct peer *peer);
/* Removes the peer with that id. Does nothing if there is none. */
void index_remove(struct peer_index *index, uint64_t id);
/* The index of the first entry with an id above @id; index->count: there is none. */
unsigned index_after(const struct peer_index *index, uint64_t id);
/* The peer with that id, or NULL. */
struct peer *index_find(const struct peer_index *index, uint64_t id);
void index_deinit(struct peer_index *index);
