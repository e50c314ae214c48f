/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: their reservations, and drafts that a former daemon granted. Loop thread only. */
#include "daemon/state/catalog.h"
#include "daemon/state/tensor.h"

bool draft_request(const struct state *st, const struct client *c, uint64_t ref,
		   struct tensor_request *rq)
{
	uint32_t slot;

	/* a draft of a group has used up its reservations */
	if (!draft_find(st, c, ref, &slot) || st->tensors[slot].group ||
	    catalog_row(&st->catalog, slot)->name != CATALOG_NONE)
		return false;
	rq->nbytes = catalog_row(&st->catalog, slot)->nbytes;
	rq->extra = (st->tensors[slot].chunks_reserved - catalog_chunks_for(TENSOR_NAME_MAX)) *
		    CATALOG_CHUNK_BYTES;
	rq->own_pages = st->tensors[slot].segment && st->tensors[slot].segment->once;
	return true;
}

void tensor_abort(struct state *st, struct client *c, uint64_t ref)
{
	uint32_t slot;

	if (!draft_find(st, c, ref, &slot))
		return;
	if (!st->tensors[slot].group) {
		draft_give_up(st, c, slot);
		return;
	}
	c->group.phase = GROUP_ABORTS;
	c->group.error = 0;
	c->group.leader = slot;
}

int draft_take_name(struct state *st, uint32_t slot, const struct name_key *key, uint32_t *name)
{
	struct tensor *t = &st->tensors[slot];
	uint32_t chunks;
	int r = name_take(&st->names, t->account, key, name, &chunks);

	t->chunks_reserved = (uint16_t)(t->chunks_reserved - chunks);
	return r;
}

int segments_seal(const struct state *st, uint32_t slot, const char **why)
{
	struct segment *seg = st->tensors[slot].segment;

	if (!seg || segment_is_sealed(seg))
		return 0;
	*why = "its memory is not sealed: the producer must add F_SEAL_FUTURE_WRITE to it";
	return STATE_E_INVALID;
}

/* ---- of a former daemon --------------------------------------------------------------------- */

int tensor_adopt(struct state *st, struct account *account, uint32_t slot, uint32_t chunks)
{
	struct tensor *t = &st->tensors[slot];
	int r;

	*t = (struct tensor){ .account = account,
			      .sibling = slot,
			      .sibling_prev = slot,
			      .owner = catalog_row_fact(&st->catalog, slot)->owner,
			      .chunks = (uint16_t)chunks };
	r = account_adopt(account, &st->catalog.pools[SHARE_TENSORS], 1);
	return r ? r : account_adopt(account, &st->catalog.pools[SHARE_CHUNKS], chunks);
}

/* Sets aside again the chunks that the commit of an adopted draft may need. */
int draft_reserve(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	int r = name_chunks_reserve(&st->names, t->chunks);

	if (r)
		return r;
	t->chunks_reserved = t->chunks;
	t->chunks = 0;
	return 0;
}

void draft_adopt(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	account_adopt(t->account, &st->catalog.pools[SHARE_DRAFTS], 1);
	slots_add(st, &c->draft_head, slot);
	t->doubted = true;
	t->prefetch = catalog_row_fact(&st->catalog, slot)->ring_sum;
	if (t->prefetch) /* an idle client sends no RESUMED: the draft may be taken back before */
		prefetched_add(st, c, t);
	else
		list_add_tail(&c->doubted, &t->link);
	atomic_fetch_add(&st->catalog.header->drafts, 1);
	c->drafts++;
}

/* Takes the draft back if the client's ledger does not count it. Members of a group are given up at
 * once, since no client commits them: it commits the draft that is the group's memory. */
static void doubt(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (t->group)
		return;
	if (t->sibling != slot && !client_leases_on(c, slot)) {
		draft_give_up(st, c, slot);
		return;
	}
	t->prefetch = true;
	prefetched_add(st, c, t);
	prefetch_try_back(st, c, slot);
}

/* The first draft of @c that may be taken back, if a former daemon granted it; else NULL. Drafts of
 * a former daemon come first in the list. */
static struct tensor *prefetched_doubted(const struct client *c)
{
	struct tensor *t;

	if (list_empty(&c->prefetched))
		return NULL;
	t = list_first_entry(&c->prefetched, struct tensor, link);
	return t->doubted ? t : NULL;
}

/* The client's ledger counts the drafts that it uses. The others are unused prefetched ones, and
 * those whose DRAFT answer never arrived. */
bool drafts_doubt(struct state *st, struct client *c, unsigned budget)
{
	struct tensor *t;

	for (; budget && !list_empty(&c->doubted); budget--) {
		t = list_first_entry(&c->doubted, struct tensor, link);
		list_del(&t->link);
		t->doubted = false;
		doubt(st, c, (uint32_t)(t - st->tensors));
	}
	for (; budget && (t = prefetched_doubted(c)); budget--) {
		t->doubted = false;
		prefetch_try_back(st, c, (uint32_t)(t - st->tensors));
	}
	return !list_empty(&c->doubted) || prefetched_doubted(c);
}

/* If drafts have ended since @left was counted, some are looked at twice, which does no harm. The
 * memory of a group is not given up here, but by ABORT. */
bool drafts_unbind(struct state *st, struct client *c, uint32_t *left, unsigned *budget)
{
	for (; *budget && *left && c->draft_head != CATALOG_NONE; --*budget, --*left) {
		uint32_t slot = c->draft_head;

		c->draft_head = st->tensors[slot].next;
		if (!st->tensors[slot].group && !client_leases_on(c, slot))
			draft_give_up(st, c, slot);
	}
	return !*left || c->draft_head == CATALOG_NONE;
}
