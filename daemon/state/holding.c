/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holdings. A holding ends with its segment or its client. If rows still stand at it when its
 * client ends, the last of them to move on frees it. New holdings come last in the list, so that a
 * row that has passed some never has to begin again. Loop thread only.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/state/client.h"
#include "util/fault.h"

static struct holding **bucket(struct state *st, const struct client *c, uint32_t segment,
			       uint32_t generation)
{
	uint64_t key = ((uint64_t)segment << 32 | generation) * 0x9e3779b97f4a7c15ULL ^ c->id;

	return &st->holdings[(key * 0xd6e8feb86659fd93ULL) >> (64 - STATE_HOLDING_BITS)];
}

static struct pool *mappings(struct state *st)
{
	return &st->common->pools[SHARE_MAPPINGS];
}

/* Takes the holding from its client. */
static void holding_forget(struct state *st, struct holding *h)
{
	struct holding **link = bucket(st, h->client, h->segment, h->generation);

	while (*link != h)
		link = &(*link)->chain;
	*link = h->chain;
	list_del(&h->client_link);
	h->client->holding_count--;
	account_give(h->client->account, mappings(st), 1);
	h->client = NULL;
}

static void holding_end(struct holding *h)
{
	if (h->client || h->rows)
		return;
	list_del(&h->segment_link);
	free(h);
}

typedef int take(struct account *account, struct pool *pool, uint64_t amount);

static int make(struct state *st, struct client *c, struct segment *seg, take *charge)
{
	uint32_t segment = seg ? seg->index : CATALOG_NONE;
	uint32_t generation = seg ? seg->generation : 0;
	struct holding **link = bucket(st, c, segment, generation), *h;
	int r;

	for (h = *link; h; h = h->chain) {
		if (h->client == c && h->segment == segment && h->generation == generation)
			return 0;
	}
	r = charge(c->account, mappings(st), 1);
	if (r)
		return r;
	h = fault("holding") ? NULL : calloc(1, sizeof(*h));
	if (!h) {
		account_give(c->account, mappings(st), 1);
		return -ENOMEM;
	}
	*h = (struct holding){
		.chain = *link, .client = c, .segment = segment, .generation = generation
	};
	*link = h;
	list_add_tail(holdings_of(st, seg), &h->segment_link);
	list_add_tail(&c->holdings, &h->client_link);
	c->holding_count++;
	return 0;
}

int holding_make(struct state *st, struct client *c, struct segment *seg)
{
	return make(st, c, seg, account_take);
}

int holding_adopt(struct state *st, struct client *c, struct segment *seg)
{
	return make(st, c, seg, account_adopt_stated);
}

bool holdings_leave(struct state *st, struct client *c, unsigned *budget)
{
	struct holding *h;

	for (; *budget && !list_empty(&c->holdings); --*budget) {
		h = list_first_entry(&c->holdings, struct holding, client_link);
		holding_forget(st, h);
		holding_end(h);
	}
	return list_empty(&c->holdings);
}

bool holdings_bury(struct common *sh, unsigned most)
{
	struct segments *segments;
	struct holding *h;

	for (; most && !list_empty(&sh->graves); most--) {
		segments = list_first_entry(&sh->graves, struct segments, burying);
		if (list_empty(&segments->graves)) { /* they may have ended with clients */
			list_del(&segments->burying);
			continue;
		}
		h = list_first_entry(&segments->graves, struct holding, segment_link);
		h->rows = 0; /* no row stands in an ended segment, except at the daemon's end */
		if (h->client)
			holding_forget(container_of(segments, struct state, segments), h);
		holding_end(h);
		list_del(&segments->burying); /* take turns with other namespaces */
		list_add_tail(&sh->graves, &segments->burying);
	}
	return !list_empty(&sh->graves);
}

void holding_left(struct holding *h)
{
	h->rows--;
	holding_end(h);
}
