/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption of rings; see recover.h. Rings are found by their rows, which only a daemon writes; the
 * pages are never trusted to say which rows belong to a ring. If its name means the ring, it lives;
 * but if its page is dead, its end has reached E1 and begins anew, as in tests/model/ring.pml. If
 * its name means something else, its end has reached E2 at least. Then only E4 is left, since rows
 * that no name means are retired anyway. Loop thread only.
 */
#include <errno.h>

#include "daemon/recover/check.h"
#include "daemon/recover/recover.h"
#include "daemon/state/ring.h"
#include "daemon/state/survive.h"
#include "daemon/store/segment.h"

bool adopt_is_slot(const struct state *st, uint32_t slot)
{
	return row_is_ring_slot(&st->catalog, catalog_row(&st->catalog, slot));
}

static int ring_take_over(struct state *st, uint32_t index, struct ring **out)
{
	char tag[KEEPER_TAG_SIZE];

	survive_tag(tag, SURVIVOR_PAGE, st->catalog.instance, index,
		    st->catalog.facts->rings[index].generation);
	return ring_adopt(st, index, keeper_link_take(st->common->keeper, tag), out);
}

int adopt_rings(struct state *st, uint32_t *index)
{
	int r = adopt_streams(st, index);

	for (uint32_t slot = 0; !r && slot < st->catalog.rows.high; slot++) {
		const struct catalog_row *row = catalog_row(&st->catalog, slot);
		enum row_state state = row_word_state(row->word);
		struct ring *ring = NULL;

		if ((state != ROW_LIVE && state != ROW_RETIRED) ||
		    !row_is_of_ring(&st->catalog, row))
			continue;
		*index = ref_slot(ring_slot_ring(row->ring));
		if (ring_slot_ring(row->ring) & REF_STREAM) {
			r = adopt_stream_row(st, slot);
			continue;
		}
		if (st->rings)
			ring = st->rings[*index];
		if (!ring)
			r = ring_take_over(st, *index, &ring);
		if (!r && ring_ref(ring) != ring_slot_ring(row->ring))
			r = SEGMENT_E_STRANGE;
		if (!r)
			ring_has(st, ring, slot);
	}
	return r;
}

static bool is_meant(const struct state *st, const struct ring *ring)
{
	return catalog_name(&st->catalog, ring->name)->current == ring_ref(ring);
}

/* Makes the row that the page means LIVE. It is not RETIRED, unless the producer lied to the former
 * daemon. */
static void meant_recover(struct state *st, const struct ring *ring)
{
	uint64_t word = atomic_load(&ring->page->word);
	unsigned index = ring_word_index(word);
	struct catalog_row *row;

	if (index >= ring->count || ring->slots[index] == CATALOG_NONE)
		return;
	row = catalog_row(&st->catalog, ring->slots[index]);
	if (row->word == row_word(ring_word_generation(word) & ROW_GENERATION_MAX, ROW_RETIRED)) {
		atomic_store(&row->word, row_word(row->word >> 2, ROW_LIVE));
		atomic_fetch_sub(&st->catalog.header->retired, 1);
	}
}

void adopt_rings_belong(struct state *st, struct client *nobody)
{
	atomic_store(&st->catalog.header->rings, 0);
	atomic_store(&st->catalog.header->ring_slots, 0);
	for (uint32_t i = 0; st->rings && i < CATALOG_RINGS; i++) {
		const struct ring_fact *fact = &st->ring_facts[i];
		struct client *c = NULL;

		if (!st->rings[i] || st->rings[i]->stream || !is_meant(st, st->rings[i]))
			continue;
		if (fact->owner < st->catalog.clients.high)
			c = st->served[fact->owner];
		if (!c || c->generation != fact->owner_generation)
			c = nobody;
		ring_belongs(st, st->rings[i], c);
		meant_recover(st, st->rings[i]);
	}
}

int adopt_rings_end(struct state *st, const struct client *nobody)
{
	for (uint32_t i = 0; st->rings && i < CATALOG_RINGS; i++) {
		struct ring *ring = st->rings[i];
		struct account *account;

		if (!ring || ring->stream)
			continue;
		if (!ring->client) {
			ring_ended(st, ring);
			continue;
		}
		if (ring->client != nobody && !(atomic_load(&ring->page->word) & RING_DEAD))
			continue;
		account = account_ref(&st->accounts, ring->uid);
		if (!account)
			return -ENOMEM;
		ring_end(st, account, ring);
		account_unref(account);
	}
	return 0;
}
