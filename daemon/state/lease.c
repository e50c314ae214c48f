/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: which tensors are in use. A client takes a lease without asking us, by writing its own
 * ledger; we learn of it when we read that page. A late view is safe: it keeps memory longer, it
 * never frees it early.
 *
 * A RETIRED row walks along the holdings of its segment. It is parked at the first holding whose
 * client's ledger shows a lease, and reclaimed at the end. It need not go back, nor begin again for
 * a new holding, since that comes last. A counter that was 0 after T1 stays 0, except for gets that
 * lose their race, and these tell us (R2). So only the holders of this segment are looked at,
 * however many other clients there are. Long walks, which a retire, a rescan or the end of a client
 * begins, are done in steps; their rows wait in account.rows.
 *
 * While a row is handed on it stands nowhere. When the last handover ends, and when a client has
 * received the tensor, the walk begins at the first holding: it may have passed the receiver's.
 *
 * Invariants: (1) LIVE becomes RETIRED here, and RETIRED becomes FREE by tensor_reclaim(), which
 * lease_done() calls; only a row of a ring goes back to LIVE, and an adoption decides anew; (2) a
 * tensor stays RETIRED from T1 until no ledger holds its slot; (3) the ledger of a connection that
 * ended is read until nobody maps it any more (client_end.c); (4) a RETIRED row that is not handed
 * on stands at one holding, and is in client.parked of that holding's client or in some
 * account.rows.
 *
 * ORDER: T1 then T2 here, G2 then G3 in client/connection/lease_protocol.h; D1 then D2 here, G2
 * then G3 there; T1 then T2 here, R1 then R2 there. Each side writes its own word, then reads the
 * other's. All four accesses are seq_cst, so one of the two always sees the other. With
 * release/acquire both may read the old value: a leased tensor is reused, or a last release is
 * missed. A lease that was taken before its client became a holder may be missed here: G4 tells
 * that client. Loop thread only.
 */
#include <assert.h>

#include "daemon/state/lease.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/ring.h"
#include "daemon/state/state.h"
#include "daemon/state/tensor.h"

/* A tensor that more clients than this have mapped counts as held when space is wanted. */
enum { LOOKS_TO_EVICT = 256 };
enum { LOOKS_AT_ONCE = 8 }; /* reads of ledgers by one retire or RELEASED; steps do the rest */

/* A client that gets a tensor without bytes maps nothing, even if the row shares an extent with
 * others. */
static struct list *holdings_of_row(struct state *st, uint32_t slot)
{
	bool empty = catalog_row(&st->catalog, slot)->segment == CATALOG_NONE;

	return holdings_of(st, empty ? NULL : st->tensors[slot].segment);
}

static uint32_t slot_of(const struct state *st, const struct tensor *t)
{
	return (uint32_t)(t - st->tensors);
}

/* The head of the circular list of RETIRED rows with the name of @slot. */
static uint32_t *retired_of(const struct state *st, uint32_t slot)
{
	return &st->names.info[catalog_row(&st->catalog, slot)->name].retired;
}

static void lease_done(struct state *st, uint32_t slot)
{
	atomic_fetch_sub(&st->catalog.header->retired, 1);
	slots_remove(st, retired_of(st, slot), slot);
	if (!ring_takes_back(st, slot))
		tensor_reclaim(st, slot);
}

/* To be called when the row is not LIVE any more, though clients may still hold it. */
static void live_ended(struct state *st, uint32_t slot)
{
	if (catalog_row(&st->catalog, slot)->flags & ROW_ON_DEVICE)
		lost_remove(st, slot);
	lifetime_end(st, slot);
	atomic_fetch_add(&st->catalog.header->retired, 1);
}

bool lease_look(struct state *st, uint32_t slot, uint64_t now, uint64_t *used)
{
	unsigned budget = LOOKS_TO_EVICT;
	struct holding *h;
	uint64_t last;

	*used = 0;
	if (st->tensors[slot].handed)
		return true;
	list_for_each_entry(h, holdings_of_row(st, slot), segment_link) {
		if (!h->client)
			continue;
		if (!budget-- || client_leases_on(h->client, slot))
			return true;
		last = client_last_use(h->client, slot, now);
		if (last > *used)
			*used = last;
	}
	return false;
}

/* A client that tries to get the tensor between T1 and the word's return to LIVE retries until it
 * is LIVE. A client that releases it meanwhile sends a RELEASED, which is ignored. */
bool lease_retire_unheld(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t word = atomic_load(&row->word), used;

	assert(row_word_state(word) == ROW_LIVE);
	atomic_store(&row->word, word | ROW_RETIRED); /* T1 */
	if (lease_look(st, slot, 0, &used)) {	      /* T2 */
		atomic_store(&row->word, word);
		return false;
	}
	live_ended(st, slot);
	slots_add(st, retired_of(st, slot), slot);
	return true;
}

void lease_reclaim_unheld(struct state *st, uint32_t slot)
{
	lease_done(st, slot);
}

/* Makes the row stand at the holding @at, or reclaims the row if @at is the end of the list. */
static void stand(struct state *st, uint32_t slot, struct list *at)
{
	struct tensor *t = &st->tensors[slot];
	struct holding *before = t->at;

	t->at = NULL;
	if (at != holdings_of_row(st, slot)) {
		t->at = list_entry(at, struct holding, segment_link);
		t->at->rows++;
	}
	if (before)
		holding_left(before);
	if (!t->at)
		lease_done(st, slot);
}

/* T2, for at most *@budget holdings. False: there are more holdings to look at. */
static bool walk(struct state *st, uint32_t slot, unsigned *budget)
{
	struct tensor *t = &st->tensors[slot];

	while (t->at && *budget) {
		--*budget;
		if (t->at->client && client_leases_on(t->at->client, slot)) {
			list_add_tail(&t->at->client->parked, &t->link);
			if (!ring_keeps(st, slot)) /* else the row stays charged to its producer */
				tensor_charge_to(st, slot, t->at->client->account);
			return true;
		}
		stand(st, slot, t->at->segment_link.next);
	}
	return !t->at;
}

static void account_steps(struct state *st, struct account *a)
{
	if (list_empty(&a->rows) || !list_empty(&a->stepping))
		return;
	a->refs++;
	list_add_tail(&st->stepping, &a->stepping);
	list_add_tail(&account_top(a)->steps, &a->step);
	account_due(a, ACCOUNT_STEPS);
}

/* Begins or continues the walk on behalf of @a, whose steps do the rest. */
static void walk_for(struct state *st, struct account *a, uint32_t slot)
{
	unsigned budget = LOOKS_AT_ONCE;

	if (walk(st, slot, &budget))
		return;
	list_add_tail(&a->rows, &st->tensors[slot].link);
	account_steps(st, a);
}

/* Charges a RETIRED row to the client that has handed it on. */
static void charge_handed(struct state *st, uint32_t slot)
{
	if (!ring_keeps(st, slot))
		tensor_charge_to(st, slot, st->tensors[slot].handed->client->account);
}

static void walk_begin(struct state *st, struct account *a, uint32_t slot)
{
	if (st->tensors[slot].handed) {
		charge_handed(st, slot);
		return;
	}
	stand(st, slot, holdings_of_row(st, slot)->next);
	walk_for(st, a, slot);
}

void lease_adopt(struct state *st, struct account *a, uint32_t slot)
{
	list_init(&st->tensors[slot].link);
	slots_add(st, retired_of(st, slot), slot);
	walk_begin(st, a, slot);
}

void lease_retire(struct state *st, struct account *a, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t word = atomic_load(&row->word);

	assert(row_word_state(word) == ROW_LIVE);
	atomic_store(&row->word, word | ROW_RETIRED); /* T1 */
	live_ended(st, slot);
	lease_adopt(st, a, slot);
}

bool lease_revive(struct state *st, const struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct holding *at = t->at;

	if (!client_leases_on(c, slot) || !at)
		return false;
	tensor_charge_back(st, slot, c->account);
	slots_remove(st, retired_of(st, slot), slot);
	list_del(&t->link);
	t->at = NULL;
	holding_left(at);
	atomic_fetch_sub(&st->catalog.header->retired, 1);
	return true;
}

void lease_released(struct state *st, struct client *c, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	struct tensor *t = &st->tensors[slot];

	if (slot >= st->catalog.rows.high ||
	    atomic_load(&catalog_row(&st->catalog, slot)->word) !=
		    row_word(ref_generation(ref), ROW_RETIRED) ||
	    !t->at || t->at->client != c)
		return;
	list_del(&t->link);
	walk_for(st, c->account, slot);
}

void lease_rescan(struct state *st, struct client *c)
{
	list_move_all(&c->account->rows, &c->parked);
	account_steps(st, c->account);
}

void lease_moved(struct state *st, struct account *a, uint32_t slot)
{
	if (st->tensors[slot].handed)
		return;
	list_del(&st->tensors[slot].link);
	stand(st, slot, holdings_of_row(st, slot)->next);
	if (!st->tensors[slot].at)
		return;
	list_add_tail(&a->rows, &st->tensors[slot].link);
	account_steps(st, a);
}

void lease_hand(struct state *st, struct handover *h)
{
	struct tensor *t = &st->tensors[h->slot];
	struct holding *at = t->at;

	h->next = t->handed;
	t->handed = h;
	if (!at)
		return;
	list_del(&t->link);
	t->at = NULL;
	holding_left(at);
	charge_handed(st, h->slot);
}

void lease_unhand(struct state *st, struct handover *h)
{
	struct handover **link = &st->tensors[h->slot].handed;

	while (*link != h)
		link = &(*link)->next;
	*link = h->next;
}

void lease_walk_again(struct state *st, struct account *a, uint32_t slot)
{
	if (row_word_state(catalog_row(&st->catalog, slot)->word) != ROW_RETIRED)
		return;
	list_del(&st->tensors[slot].link);
	walk_begin(st, a, slot);
}

bool steps_go(struct state *st, struct account *a, unsigned budget)
{
	struct tensor *t;

	while (budget && !list_empty(&a->rows)) {
		t = list_first_entry(&a->rows, struct tensor, link);
		list_del(&t->link);
		if (!walk(st, slot_of(st, t), &budget))
			list_add_head(&a->rows, &t->link);
	}
	if (!list_empty(&a->rows))
		return true;
	list_del(&a->stepping);
	list_del(&a->step);
	account_unref(a);
	return false;
}
