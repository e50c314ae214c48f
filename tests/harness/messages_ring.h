/* SPDX-License-Identifier: Apache-2.0 */
/* Those of messages.h that are about rings. */
#pragma once

#include "proto/ring_layout.h"
#include "tests/harness/sample.h"

static inline void samples_rings(struct samples *all)
{
	const uint64_t ref = ref_make(7, 42), ring = ring_ref_make(1, 2);

	SAMPLE(all, WIRE_RING, 1 + 2 * 8, struct wire_ring, .ref = ref, .tensor.name_len = 1,
	       .count = RING_SLOTS_MIN - 1);
	SAMPLE(all, WIRE_RING, 6 * 8 + 255 + 24 + (RING_SLOTS_MAX - 1) * 8, struct wire_ring,
	       .ref = ref, .tensor = { .ndim = 6, .name_len = 255, .meta_len = 24 },
	       .count = RING_SLOTS_MAX - 1);
	SAMPLE(all, WIRE_RETIRE, 8, struct wire_retire, .ring = ring, .count = 1);
	SAMPLE(all, WIRE_RETIRE, RING_REFS_MAX * 8, struct wire_retire, .ring = UINT64_MAX,
	       .count = RING_REFS_MAX);
	SAMPLE(all, WIRE_PAGE, 0, struct wire_ring_ref, .ring = ring);
	SAMPLE(all, WIRE_SLEEP, 0, struct wire_ring_ref, .ring = UINT64_MAX);
}

static inline void samples_ring_replies(struct samples *all)
{
	SAMPLE(all, WIRE_GRANTED, 0, struct wire_granted, .version = 1, .ring = 5)->nfds = 1;
	SAMPLE(all, WIRE_PAGE_OF, 0, struct wire_page_of, .ring = 5, .pid = 1)->nfds = 1;
}
