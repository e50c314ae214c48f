/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can be taken from the state, to compare before and after; for the
 * tests/unit/state*.c. */
#pragma once

#include "tests/unit/state_fixture.h"

struct snapshot {
	uint64_t used, warm, bytes_of_user;
	uint32_t rows, names, segments, chunks, clients, reserved, tensors, retired, drafts,
		of_client;
	unsigned objects, fds, going, prefetched;
};

static inline struct snapshot fx_snapshot(const struct tester *t)
{
	const struct catalog *cat = &st.catalog;
	struct snapshot s;

	memset(&s, 0, sizeof(s)); /* padding counts, since they are compared as bytes */
	s.used = st.memory.store.quota.used;
	s.warm = st.memory.store.warm_bytes;
	s.bytes_of_user = t->c.user->bytes;
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
	s.going = st.memory.store.going;
	s.prefetched = st.prefetched;
	return s;
}
#define assert_unchanged(before, t)                                                                \
	do {                                                                                       \
		struct snapshot after_ = fx_snapshot(t);                                           \
		assert_memory_equal(&(before), &after_, sizeof(after_));                           \
	} while (0)
