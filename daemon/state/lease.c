/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: which tensors are in use. A client takes a lease without asking us, by writing its own
 * ledger; we learn of it when we read that page. A late view is safe: it keeps memory longer, it
 * never frees it early. Invariants: (1) a row's word goes LIVE -> RETIRED -> FREE here only; (2) a
 * tensor stays RETIRED from T1 until no ledger holds its slot; (3) the ledger of a connection that
 * ended is read until nobody maps it any more (disconnect.c).
 *
 * ORDER: T1 then T2 here, G2 then G3 in client/session/hold.h; D1 then D2 here, G2 then G3 there;
 * T1 then T2 here, R1 then R2 there. Each side writes its own word, then reads the other's; all
 * four accesses are seq_cst, so one of the two always sees the other. With release/acquire both may
 * read the old value: a leased tensor is reused, or a last release is missed. Loop thread only.
 */
#include <assert.h>

#include "daemon/state/lease.h"
#include "daemon/state/lost.h"
#include "daemon/state/tensor.h"

static bool lease_held(const struct state *st, uint32_t slot)
{
	uint32_t high = st->catalog.clients.high;

	for (uint32_t i = 0; i < high; i++) {
		if (st->served[i] && client_leases_on(st->served[i], slot))
			return true;
	}
	return false;
}

static void lease_done(struct state *st, uint32_t slot)
{
	atomic_fetch_sub(&st->catalog.header->retired, 1);
	tensor_reclaim(st, slot);
}

void lease_retire(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t word = atomic_load(&row->word);

	assert(row_word_state(word) == ROW_LIVE);
	if (row->flags & ROW_ON_DEVICE)
		lost_remove(st, slot);
	atomic_store(&row->word, word | ROW_RETIRED); /* T1 */
	atomic_fetch_sub(&st->catalog.header->tensors, 1);
	atomic_fetch_add(&st->catalog.header->retired, 1);
	if (!lease_held(st, slot)) /* T2 */
		lease_done(st, slot);
}

static bool is_retired(const struct state *st, uint32_t slot)
{
	return row_word_state(atomic_load(&catalog_row(&st->catalog, slot)->word)) == ROW_RETIRED;
}

void lease_released(struct state *st, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);

	if (slot >= st->catalog.rows.high)
		return;
	if (atomic_load(&catalog_row(&st->catalog, slot)->word) !=
	    row_word(ref_generation(ref), ROW_RETIRED))
		return;
	if (!lease_held(st, slot))
		lease_done(st, slot);
}

void lease_rescan(struct state *st)
{
	if (!atomic_load(&st->catalog.header->retired))
		return;
	for (uint32_t slot = 0; slot < st->catalog.rows.high; slot++) {
		if (is_retired(st, slot) && !lease_held(st, slot))
			lease_done(st, slot);
	}
}
