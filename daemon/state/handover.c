/* SPDX-License-Identifier: Apache-2.0 */
/* Handovers; see handover.h. tests/model/handover.pml has their steps. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/state/handover.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/survive.h"
#include "util/clock.h"
#include "util/fault.h"

static struct handover *handover_find(const struct state *st, uint32_t slot, uint64_t id)
{
	struct handover *h = st->tensors[slot].handed;

	while (h && h->id != id)
		h = h->next;
	return h;
}

/* Makes a handover that is not in its tensor's list yet. */
static struct handover *handover_alloc(struct client *c, uint64_t ref, uint64_t id)
{
	struct handover *h = fault("handover") ? NULL : calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->client = c;
	h->slot = ref_slot(ref);
	h->id = id;
	h->fact = CATALOG_NONE;
	return h;
}

static void handover_begin(struct state *st, struct handover *h, uint64_t expires_ns)
{
	list_add_tail(&h->client->handed, &h->of_client);
	h->client->handovers++;
	if (expires_ns)
		heap_add(&st->lifetimes.handovers, &h->expiry, expires_ns);
	lifetime_schedule(st);
	lease_hand(st, h);
}

static void handover_end(struct state *st, struct handover *h)
{
	struct account *a = h->client->account;
	uint32_t slot = h->slot;

	list_del(&h->of_client);
	h->client->handovers--;
	heap_remove(&st->lifetimes.handovers, &h->expiry);
	lifetime_schedule(st);
	lease_unhand(st, h);
	if (h->fact != CATALOG_NONE) { /* before the tensor can end */
		survive_handover_ended(&st->catalog, h->fact);
		catalog_give(&st->catalog.handovers, h->fact);
	}
	charge_give(&h->charge);
	free(h);
	lease_walk_again(st, a, slot);
}

static bool holds(struct state *st, const struct client *c, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);

	if (slot >= st->catalog.rows.high)
		return false;
	tensor_finish(st, slot);
	return ref_is_published(st, ref) && client_leases_on(c, slot);
}

int handover_new(struct state *st, struct client *c, const struct handover_request *rq)
{
	uint64_t expires = rq->ttl_ns ? (uint64_t)now_mono_ns() + rq->ttl_ns : 0;
	struct handover *h;
	int r;

	if (!holds(st, c, rq->ref))
		return STATE_E_STALE;
	h = handover_find(st, ref_slot(rq->ref), rq->id);
	if (h)
		return 0; /* a request repeated after a restart */
	if (c->handovers >= CLIENT_HANDOVERS_MAX)
		return STATE_E_HANDOVERS;
	h = handover_alloc(c, rq->ref, rq->id);
	if (!h)
		return -ENOMEM;
	r = charge_take(&h->charge, c->account, state_pool(st, SHARE_WAITS), 1);
	if (!r && st->catalog.facts)
		r = catalog_take(&st->catalog, &st->catalog.handovers, &h->fact);
	if (r) {
		charge_give(&h->charge);
		free(h);
		return r == CATALOG_E_FULL ? -ENOSPC : r;
	}
	if (h->fact != CATALOG_NONE)
		survive_handover(&st->catalog, h->fact,
				 &(struct handover_fact){ .ref = rq->ref,
							  .id = rq->id,
							  .expires_ns = expires,
							  .client = c->index,
							  .generation = c->generation });
	stream_row_keep(st, h->slot);
	handover_begin(st, h, expires);
	return 0;
}

int handover_receive(struct state *st, struct client *c, uint64_t ref, uint64_t id)
{
	uint32_t slot = ref_slot(ref);
	struct handover *h = slot < st->catalog.rows.high ? handover_find(st, slot, id) : NULL;
	bool takes_back = h && h->client == c;

	if (!takes_back && !holds(st, c, ref))
		return STATE_E_NOT_FOUND;
	if (h)
		handover_end(st, h);
	else
		lease_walk_again(st, c->account, slot);
	return 0;
}

bool handovers_leave(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && !list_empty(&c->handed); --*budget)
		handover_end(st, list_first_entry(&c->handed, struct handover, of_client));
	return list_empty(&c->handed);
}

enum { EXPIRE_BATCH = 64 };

void handovers_expire(struct state *st, int64_t now)
{
	struct heap *ends = &st->lifetimes.handovers;

	for (unsigned n = 0; n < EXPIRE_BATCH && ends->top && (int64_t)ends->top->key <= now; n++)
		handover_end(st, container_of(ends->top, struct handover, expiry));
}

static int handover_adopt(struct state *st, const struct handover_fact *fact, uint32_t index)
{
	struct client *c = st->served[fact->client];
	struct handover *h = handover_alloc(c, fact->ref, fact->id);
	int r;

	if (!h)
		return -ENOMEM;
	r = charge_adopt(&h->charge, c->account, state_pool(st, SHARE_WAITS), 1);
	if (r) {
		free(h);
		return r;
	}
	h->fact = index;
	handover_begin(st, h, fact->expires_ns);
	return 0;
}

int handovers_adopt(struct state *st)
{
	struct catalog *cat = &st->catalog;
	int r = 0;

	for (uint32_t i = 0; !r && i < cat->handovers.high; i++) {
		const struct handover_fact *fact = catalog_handover_fact(cat, i);

		if (!fact->sum)
			continue;
		if (!st->served[fact->client]->ended && ref_is_published(st, fact->ref)) {
			r = handover_adopt(st, fact, i);
			continue;
		}
		survive_handover_ended(cat, i);
		catalog_give(&cat->handovers, i);
	}
	return r;
}
