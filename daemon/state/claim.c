/* SPDX-License-Identifier: Apache-2.0 */
/* Claims on names; see claim.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/claim.h"
#include "daemon/state/survive.h"

enum { BUCKETS = 1024 };

struct claim {
	struct list link; /* a claim: in its bucket; a wait: in its claim's queue; else in none */
	struct list of_client; /* in client.claims */
	struct list queue;     /* of struct claim: in a bucket, the waits for this claim */
	struct state *state;   /* outlives us */
	struct client *client;
	struct notice *notice; /* the answer; NULL: it was given */
	struct charge charge;
	uint32_t fact;	 /* its entry in the facts, valid once its client has the claim; or
			    CATALOG_NONE */
	uint32_t id;	 /* the client's number for it */
	uint32_t serial; /* of the request to answer */
	uint32_t hash;
	uint16_t len;
	char name[];
};

static struct list *bucket_of(const struct state *st, uint32_t hash)
{
	return &st->claims.buckets[hash % BUCKETS];
}

static struct claim *claim_find(const struct state *st, const struct name_key *name, uint32_t hash)
{
	struct claim *claim;

	if (!st->claims.count)
		return NULL;
	list_for_each_entry(claim, bucket_of(st, hash), link) {
		if (claim->hash == hash && claim->len == name->len &&
		    !memcmp(claim->name, name->text, name->len))
			return claim;
	}
	return NULL;
}

static int buckets_make(struct state *st)
{
	if (st->claims.buckets)
		return 0;
	st->claims.buckets = malloc(BUCKETS * sizeof(*st->claims.buckets));
	for (unsigned i = 0; st->claims.buckets && i < BUCKETS; i++)
		list_init(&st->claims.buckets[i]);
	return st->claims.buckets ? 0 : -ENOMEM;
}

static struct claim *claim_free(struct claim *claim)
{
	struct catalog *cat = &claim->state->catalog;

	list_del(&claim->link);
	list_del(&claim->of_client);
	notice_free(claim->notice);
	if (claim->fact != CATALOG_NONE) {
		survive_claim_ended(cat, claim->fact);
		catalog_give(&cat->claims, claim->fact);
	}
	claim->client->claims--;
	charge_give(&claim->charge);
	free(claim);
	return NULL;
}

/* Makes a claim that no client has and that is not charged. */
static struct claim *claim_alloc(struct state *st, struct client *c, const struct name_key *name,
				 uint32_t hash)
{
	struct claim *claim = buckets_make(st) ? NULL : calloc(1, sizeof(*claim) + name->len);

	if (!claim)
		return NULL;
	list_init(&claim->link);
	list_init(&claim->of_client);
	list_init(&claim->queue);
	claim->state = st;
	claim->client = c;
	claim->fact = CATALOG_NONE;
	claim->hash = hash;
	claim->len = (uint16_t)name->len;
	memcpy(claim->name, name->text, name->len);
	return claim;
}

static void claim_of_client(struct claim *claim)
{
	list_add_tail(&claim->client->claimed, &claim->of_client);
	claim->client->claims++;
}

static int claim_make(struct state *st, struct client *c, const struct name_key *name,
		      uint32_t hash, struct claim **out)
{
	struct claim *claim;
	int r;

	if (c->claims >= CLIENT_CLAIMS_MAX)
		return STATE_E_CLAIMS;
	claim = claim_alloc(st, c, name, hash);
	if (!claim)
		return -ENOMEM;
	r = charge_take(&claim->charge, c->account, state_pool(st, SHARE_WAITS), 1);
	if (!r && st->catalog.facts)
		r = catalog_take(&st->catalog, &st->catalog.claims, &claim->fact);
	if (r) {
		charge_give(&claim->charge);
		free(claim);
		return r == CATALOG_E_FULL ? STATE_E_CLAIMS : r;
	}
	claim_of_client(claim);
	*out = claim;
	return 0;
}

/* Gives the claim to its client. */
static void claim_grant(struct state *st, struct claim *claim)
{
	struct claim_fact fact = { .client = claim->client->index,
				   .generation = claim->client->generation,
				   .id = claim->id,
				   .len = claim->len };

	list_add_tail(bucket_of(st, claim->hash), &claim->link);
	if (claim->fact == CATALOG_NONE)
		return;
	memcpy(fact.name, claim->name, claim->len);
	survive_claim(&st->catalog, claim->fact, &fact);
}

static bool is_published(const struct state *st, const struct name_key *name)
{
	uint32_t index = name_find(&st->names, name);
	uint64_t ref = index == CATALOG_NONE ? 0 : catalog_name(&st->catalog, index)->current;
	uint32_t slot = ref_slot(ref);

	if (ref && !(ref & REF_RING) && st->tensors[slot].pointed && member_is_pending(st, slot))
		return catalog_member(&st->catalog, slot)->former;
	if (ref && !(ref & REF_RING) && st->tensors[slot].pointed &&
	    row_deletes(catalog_row(&st->catalog, slot)->dtype_lanes))
		return false;
	return ref;
}

/* True if the client repeats, after a restart, its request for a claim that the dead daemon
 * granted. */
static bool is_repeated(const struct claim *holder, const struct client *c, uint32_t again)
{
	return holder && again && holder->client == c && holder->id == again;
}

int claim_new(struct state *st, struct client *c, const struct name_key *name,
	      const struct claim_request *rq, enum claim_outcome *what)
{
	uint32_t hash = name_hash_low(name_hash(name, st->catalog.header->name_seed));
	struct claim *holder = claim_find(st, name, hash), *claim;
	int r;

	*what = is_published(st, name) ? CLAIM_PUBLISHED : CLAIM_OTHERS;
	if (*what == CLAIM_OTHERS && is_repeated(holder, c, rq->again))
		*what = CLAIM_YOURS;
	if (*what != CLAIM_OTHERS || (holder && !rq->wait))
		return 0;
	r = claim_make(st, c, name, hash, &claim);
	if (r)
		return r;
	claim->serial = rq->serial;
	claim->id = rq->again ? rq->again : rq->serial;
	if (!holder) {
		claim_grant(st, claim);
		st->claims.count++;
		*what = CLAIM_YOURS;
		return 0;
	}
	r = notice_new(&claim->notice, c);
	if (r) {
		claim_free(claim);
		return r;
	}
	list_add_tail(&holder->queue, &claim->link);
	*what = CLAIM_WAITS;
	return 0;
}

static void claim_answer(struct common *common, struct claim *claim, enum claim_outcome what)
{
	struct notice *n = claim->notice;

	n->message.claimed = (struct wire_claimed){
		.header = { .type = WIRE_CLAIMED,
			    .length = sizeof(n->message.claimed),
			    .serial = claim->serial },
		.yours = what == CLAIM_YOURS,
		.published = what == CLAIM_PUBLISHED,
		.count = 1,
	};
	claim->notice = NULL;
	notice_due(common, n);
}

/* Passes a claim that has left its bucket and its fact to the client that has waited longest. */
static void claim_pass(struct state *st, struct claim *claim)
{
	struct claim *next;

	if (list_empty(&claim->queue)) {
		st->claims.count--;
		return;
	}
	next = list_first_entry(&claim->queue, struct claim, link);
	list_del(&next->link);
	list_move_all(&next->queue, &claim->queue);
	claim_grant(st, next);
	claim_answer(st->common, next, CLAIM_YOURS);
}

/* Ends a claim or a wait. A wait still has its notice, a granted claim has none. */
static void claim_give_up(struct state *st, struct claim *claim)
{
	if (!claim->notice) {
		list_del(&claim->link);
		if (claim->fact != CATALOG_NONE) /* first: two clients must never have one name */
			survive_claim_ended(&st->catalog, claim->fact);
		claim_pass(st, claim);
	}
	claim_free(claim);
}

void claim_end(struct state *st, struct client *c, const struct name_key *name)
{
	uint32_t hash = name_hash_low(name_hash(name, st->catalog.header->name_seed));
	struct claim *claim = claim_find(st, name, hash);

	if (claim && claim->client == c)
		claim_give_up(st, claim);
}

void claims_end(struct state *st, struct client *c, uint32_t serial)
{
	struct claim *claim, *next;

	list_for_each_entry_safe(claim, next, &c->claimed, of_client) {
		if (claim->id == serial)
			claim_give_up(st, claim);
	}
}

void claims_leave(struct state *st, struct client *c)
{
	while (!list_empty(&c->claimed))
		claim_give_up(st, list_first_entry(&c->claimed, struct claim, of_client));
}

void claims_published(struct state *st, uint32_t name)
{
	char text[TENSOR_NAME_MAX];
	struct name_key key = { .text = text };
	struct claim *claim;

	if (!st->claims.count)
		return;
	key.len = name_text(&st->names, name, text);
	claim = claim_find(st, &key, catalog_name(&st->catalog, name)->hash);
	if (!claim)
		return;
	st->claims.count--;
	list_move_all(&st->common->claims_over, &claim->queue);
	claim_free(claim);
}

bool claims_go(struct common *common, unsigned n)
{
	struct claim *claim;

	while (n-- && !list_empty(&common->claims_over)) {
		claim = list_first_entry(&common->claims_over, struct claim, link);
		claim_answer(common, claim, CLAIM_PUBLISHED);
		claim_free(claim);
	}
	return !list_empty(&common->claims_over);
}

/* ---- claims that a former daemon granted ---------------------------------------------------- */

static int claim_adopt(struct state *st, const struct claim_fact *fact, uint32_t index,
		       const struct name_key *name, uint32_t hash)
{
	struct client *c = st->served[fact->client];
	struct claim *claim = claim_alloc(st, c, name, hash);
	int r;

	if (!claim)
		return -ENOMEM;
	r = charge_adopt(&claim->charge, c->account, state_pool(st, SHARE_WAITS), 1);
	if (r) {
		free(claim);
		return r;
	}
	claim->id = fact->id;
	claim->fact = index;
	claim_of_client(claim);
	list_add_tail(bucket_of(st, hash), &claim->link);
	st->claims.count++;
	return 0;
}

int claims_adopt(struct state *st)
{
	struct catalog *cat = &st->catalog;
	int r = 0;

	for (uint32_t i = 0; !r && i < cat->claims.high; i++) {
		const struct claim_fact *fact = catalog_claim_fact(cat, i);
		struct name_key name = name_key(fact->name, fact->len);
		uint32_t hash;

		if (!fact->sum)
			continue;
		hash = name_hash_low(name_hash(&name, cat->header->name_seed));
		if (!st->served[fact->client]->ended && !is_published(st, &name) &&
		    !claim_find(st, &name, hash)) {
			r = claim_adopt(st, fact, i, &name, hash);
			continue;
		}
		survive_claim_ended(cat, i);
		catalog_give(&cat->claims, i);
	}
	return r;
}
