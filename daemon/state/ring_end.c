/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a ring.
 *
 * ORDER: the producer publishes by a compare-and-exchange of the page's word, and E1 sets a bit in
 * that word. So either we find the tensor, or its producer sees that the ring is over and asks us
 * (ring_revive() in publish.c). Before the producer writes a row it counts the row in its ledger,
 * and then reads the page's word (K1, K2); E1 changes that word before T2 of the row. So
 * either we see the count, or the producer does not write. All of these are seq_cst.
 * tests/model/ring.pml checks this, and that the steps can be repeated. Loop thread only.
 */
#include <assert.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/state/lease.h"
#include "daemon/state/name.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/survive.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "proto/wire.h"
#include "util/clock.h"

void ring_retire(struct state *st, struct client *c, uint64_t ref, const uint64_t *refs,
		 unsigned count)
{
	struct ring *ring = ring_find(st, ref, false);

	if (!ring || ring->client != c)
		return;
	for (unsigned i = 0; i < count; i++) {
		uint32_t slot = ref_slot(refs[i]);

		if (refs[i] & REF_RING || slot >= st->catalog.rows.high ||
		    st->tensors[slot].ring != ring ||
		    catalog_row(&st->catalog, slot)->word !=
			    row_word(ref_generation(refs[i]), ROW_LIVE))
			continue;
		atomic_fetch_add(&st->catalog.header->commits, 1);
		st->meters.ring_publishes++;
		st->meters.bytes += catalog_row(&st->catalog, slot)->nbytes;
		lease_retire(st, c->account, slot);
	}
}

static uint64_t most_believed(const struct state *st)
{
	return version_limit(st->common->versions_known, st->common->versions_since);
}

/* Copies the page's entry into the row, as far as it is valid. */
static void row_take_entry(struct state *st, const struct ring *ring, uint32_t slot, unsigned index)
{
	const struct catalog_name *name = catalog_name(&st->catalog, ring->name);
	const struct ring_entry entry = *(volatile const struct ring_entry *)&ring->page
						 ->entries[index];
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t version = entry.version, now = (uint64_t)now_real_ns();

	if (row->version)
		return;
	if (version <= name->version || version > most_believed(st))
		version = name->version + 1;
	row->committed_ns = entry.committed_ns && entry.committed_ns < now ? entry.committed_ns
									   : now;
	row->meta_len = entry.meta_len <= CATALOG_INLINE_META ? entry.meta_len : 0;
	for (unsigned i = 0; i < row->meta_len; i++)
		row->meta[i] = entry.meta[i];
	if (st->catalog.facts)
		catalog_row_fact(&st->catalog, slot)->sum = fact_sum(
			&version, sizeof(version), sum_of_member(&st->catalog, slot));
	/* ORDER: release; a reader that finds the version finds the rest too */
	__atomic_store_n(&row->version, version, __ATOMIC_RELEASE);
}

/* Sleepers on the page are woken like sleepers on the name. There may be very many, so the catalog
 * wakes them in steps. A sleeper beyond this number looks again by itself, within a second. */
enum { SLEEPERS_MOVED_MAX = 4096 };

static void sleepers_move(struct state *st, const struct ring *ring)
{
	const struct catalog_name *name = catalog_name(&st->catalog, ring->name);
	unsigned wakes = CATALOG_WAKE_BUDGET;

	if (atomic_load(&ring->page->watched))
		syscall(SYS_futex, ring_futex(ring->page), FUTEX_REQUEUE, CATALOG_WAKE_BUDGET,
			(void *)(uintptr_t)SLEEPERS_MOVED_MAX, &name->changes, 0);
	catalog_wake(&st->catalog, ring->name, false, &wakes);
}

static void others_retire(struct state *st, struct account *a, const struct ring *ring,
			  uint64_t meant)
{
	for (unsigned i = 0; i < ring->count; i++) {
		uint32_t slot = ring->slots[i];
		struct tensor *t = slot == CATALOG_NONE ? NULL : &st->tensors[slot];
		enum row_state state;

		if (!t || t->ring != ring || (meant && slot == ref_slot(meant)))
			continue;
		state = row_word_state(catalog_row(&st->catalog, slot)->word);
		if (state == ROW_LIVE)
			lease_retire(st, a, slot);
		else if (state == ROW_RETIRED && t->at && t->at->client &&
			 client_leases_on(t->at->client, slot))
			tensor_charge_to(st, slot, t->at->client->account);
	}
}

/* The highest credible version in the entries: the name's next version must be above it. */
static uint64_t version_seen(const struct state *st, const struct ring *ring, uint64_t most)
{
	uint64_t limit = most_believed(st);

	for (unsigned i = 0; i < ring->count; i++) {
		uint64_t version = *(volatile uint64_t *)&ring->page->entries[i].version;

		if (version > most && version <= limit)
			most = version;
	}
	return most;
}

void ring_ended(struct state *st, struct ring *ring)
{
	atomic_store(&ring->page->word, 0); /* E4 */
	sleepers_move(st, ring);
	ring->left++; /* keeps the ring until the loop is done */
	for (unsigned i = 0; i < ring->count; i++) {
		uint32_t slot = ring->slots[i];

		if (slot != CATALOG_NONE && st->tensors[slot].ring == ring &&
		    catalog_row(&st->catalog, slot)->version)
			ring_left(st, slot);
	}
	if (--ring->left == 0)
		ring_free(st, ring);
}

void ring_end(struct state *st, struct account *a, struct ring *ring)
{
	struct catalog_name *name = catalog_name(&st->catalog, ring->name);
	uint64_t word = atomic_fetch_or(&ring->page->word, RING_DEAD); /* E1 */
	uint64_t ref = ring_meaning(st, ring, word);
	unsigned wakes = CATALOG_WAKE_BUDGET;
	uint32_t slot = ref_slot(ref);

	assert(ring->client); /* only a ring that is not over has one */
	ring->client->ring_count--;
	ring->client = NULL;
	list_del(&ring->of_client);
	atomic_fetch_sub(&st->catalog.header->rings, 1);
	atomic_fetch_sub(&st->catalog.header->ring_slots, ring->count);
	ring->left++; /* keeps the ring until ring_ended() */
	if (ref) {
		row_take_entry(st, ring, slot, ring_word_index(word));
		if (catalog_row(&st->catalog, slot)->version > name->version) /* E2 */
			atomic_store(&name->version, catalog_row(&st->catalog, slot)->version);
	} else {
		atomic_fetch_sub(&st->catalog.header->tensors, 1);
		atomic_store(&name->version, version_seen(st, ring, name->version));
	}
	atomic_store(&name->current, ref);
	watches_note(st, ring->name, false, NULL, &wakes);
	others_retire(st, a, ring, ref); /* E3 */
	ring->left--;
	ring_ended(st, ring);
}

void name_end_ring(struct state *st, struct account *a, uint32_t index)
{
	struct ring *ring = ring_find(st, catalog_name(&st->catalog, index)->current, true);

	if (ring && ring->stream)
		stream_end(st, a, ring->stream);
	else if (ring && ring->client)
		ring_end(st, a, ring);
}

bool rings_free_space(struct state *st, struct account *a, bool others)
{
	struct ring *ring, *found = NULL;

	for (uint32_t i = 0;
	     st->rings && i < CATALOG_RINGS && (!found || found->client->account != a); i++) {
		ring = st->rings[i];
		if (ring && ring->client && (others || ring->client->account == a))
			found = ring;
	}
	if (found) {
		ring_end(st, a, found);
		st->common->space_freed++; /* creates may try again, even if all rows are held */
	}
	return found;
}

/* A ring gives back at least two rows, unless others hold them. */
enum { RINGS_YIELD_MAX = 4 };

bool rings_yield(struct state *st, struct account *a, int r, unsigned *ended)
{
	return charge_is_refused(r) && *ended < RINGS_YIELD_MAX &&
	       rings_free_space(st, a, r & CHARGE_E_FULL) && ++*ended;
}

bool rings_leave(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && !list_empty(&c->rings); --*budget)
		ring_end(st, c->account, list_first_entry(&c->rings, struct ring, of_client));
	return list_empty(&c->rings);
}
