/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can be taken from the state, to compare before and after; for the
 * tests/unit/state*.c. */
#pragma once

#include "tests/unit/state_fixture.h"

struct snapshot {
	uint64_t warm, pools[SHARE_DEVICE], mine[SHARE_COUNT], mine_in_all[SHARE_COUNT];
	uint32_t rows, names, segments, chunks, clients, reserved, tensors, retired, drafts,
		of_client;
	unsigned objects, fds, going, prefetched;
};

static inline struct snapshot fx_snapshot(const struct tester *t)
{
	const struct catalog *cat = &st.catalog;
	struct snapshot s;

	memset(&s, 0, sizeof(s)); /* padding counts, since they are compared as bytes */
	for (unsigned i = 0; i < SHARE_DEVICE; i++)
		s.pools[i] = state_pool(&st, i)->used;
	s.warm = st.common->store.warm_bytes;
	memcpy(s.mine, t->c.account->used, sizeof(s.mine));
	memcpy(s.mine_in_all, t->c.account->above->used, sizeof(s.mine_in_all));
	s.rows = cat->rows.in_use;
	s.names = cat->names.in_use;
	s.segments = cat->segments.in_use + seen->segments;
	s.chunks = cat->chunks.in_use;
	s.clients = cat->clients.in_use + seen->clients;
	s.reserved = cat->chunks_reserved;
	s.tensors = seen->tensors;
	s.retired = seen->retired;
	s.drafts = seen->drafts;
	s.of_client = t->c.drafts;
	s.objects = fx_objects();
	s.fds = count_fds(0);
	s.going = st.common->store.going;
	s.prefetched = st.prefetched;
	return s;
}
#define assert_unchanged(before, t)                                                                \
	do {                                                                                       \
		struct snapshot after_ = fx_snapshot(t);                                           \
		assert_memory_equal(&(before), &after_, sizeof(after_));                           \
	} while (0)
