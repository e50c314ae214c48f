/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of a state, and the lists that link its rows. Loop thread only. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/state/catalog.h"
#include "daemon/state/ring_page.h"
#include "daemon/state/state.h"
#include "daemon/state/survive.h"
#include "util/clock.h"

static void state_begin(struct state *st, struct common *common, uint64_t instance,
			const struct state_limits *limits, struct catalog_limits *shape)
{
	*shape = (struct catalog_limits){ .max_tensors = limits->max_tensors,
					  .max_clients = limits->max_clients,
					  .capacity = limits->capacity,
					  .versions = common->versions,
					  .accounts = &st->accounts,
					  .wakers = &common->waking,
					  .facts = common->keeper && common->keeper->here };
	*st = (struct state){ .common = common, .instance = instance };
	accounts_init_below(&st->accounts, &common->accounts);
	list_init(&st->lifetimes.sets);
	st->lifetimes.look_again = DEADLINE_NEVER;
	list_init(&st->everyone);
	list_init(&st->stepping);
	list_init(&st->prefetching);
	list_init(&st->streams_due);
	list_init(&st->streaming);
}

/* Makes the tables beside the catalog, which must be there. */
static int state_tables(struct state *st, const struct state_limits *limits)
{
	const struct storage *storage = limits->storage ? limits->storage : &storage_shm;
	int r;

	survive_begin(st->common, &st->catalog);
	r = segment_store_use(&st->common->store, storage);
	if (!r)
		r = segments_init(&st->segments, st->common, &st->accounts, &st->catalog, storage,
				  limits->capacity);
	if (!r)
		r = names_init(&st->names, &st->catalog);
	st->tensors = table_new(limits->max_tensors, sizeof(*st->tensors));
	st->served = table_new(limits->max_clients, sizeof(struct client *));
	st->lifetimes.of = table_new(limits->max_tensors, sizeof(*st->lifetimes.of));
	st->holdings = table_new((size_t)1 << STATE_HOLDING_BITS, sizeof(struct holding *));
	if (!r && (!st->tensors || !st->served || !st->lifetimes.of || !st->holdings))
		r = -ENOMEM;
	return r;
}

int state_init(struct state *st, struct common *common, uint64_t instance,
	       const struct state_limits *limits)
{
	struct catalog_limits shape;
	int r;

	state_begin(st, common, instance, limits, &shape);
	r = catalog_init(&st->catalog, instance, &shape);
	if (r)
		return r;
	r = state_tables(st, limits);
	if (r)
		state_deinit(st);
	return r;
}

int state_map(struct state *st, struct common *common, uint64_t instance,
	      const struct state_limits *limits, int facts_fd_take, const char **why)
{
	struct catalog_limits shape;
	int r;

	state_begin(st, common, instance, limits, &shape);
	r = catalog_adopt(&st->catalog, instance, &shape, facts_fd_take, why);
	return r ? r : state_tables(st, limits);
}

static void sets_free(struct list *sets)
{
	struct evictables *set, *after;

	list_for_each_entry_safe(set, after, sets, link)
		free(set);
}

/* Empties our lists of RETIRED rows. Processes that still use the rows keep the memory mapped. */
static void steps_drop(struct state *st)
{
	struct account *a, *after;

	list_for_each_entry_safe(a, after, &st->stepping, stepping) {
		list_init(&a->rows);
		list_del(&a->stepping);
		list_del(&a->step);
		account_unref(a);
	}
}

/* Returns extents that are charged to holders to their segments' charges, which end next. */
static void extents_return(struct state *st)
{
	struct tensor *t;

	for (uint32_t slot = 0; st->tensors && slot < st->catalog.rows.high; slot++) {
		t = &st->tensors[slot];
		if (t->moved)
			segment_return_extent(t->segment, t->account,
					      (uint64_t)t->units * SEGMENT_UNIT);
		t->moved = false;
	}
}

void state_deinit(struct state *st)
{
	const struct catalog_header *h = st->catalog.header;

	if (!h)
		return;
	heap_remove(&st->common->expiring, &st->lifetimes.next);
	sets_free(&st->lifetimes.sets);
	st->lifetimes.of = table_free(st->lifetimes.of, h->max_tensors, sizeof(*st->lifetimes.of));
	steps_drop(st);
	extents_return(st);
	rings_free(st->rings);
	if (!st->catalog.facts)
		free(st->ring_facts);
	segments_deinit(&st->segments);
	free(st->claims.buckets);
	free(st->watches);
	names_deinit(&st->names);
	st->tensors = table_free(st->tensors, h->max_tensors, sizeof(*st->tensors));
	st->served = table_free(st->served, h->max_clients, sizeof(struct client *));
	st->holdings = table_free(st->holdings, (size_t)1 << STATE_HOLDING_BITS,
				  sizeof(struct holding *));
	survive_end(st->common, &st->catalog);
	catalog_deinit(&st->catalog);
	accounts_deinit(&st->accounts);
}

struct pool *state_pool(struct state *st, enum share share)
{
	if (share == SHARE_BYTES)
		return &st->segments.totals.pool;
	if (share < SHARE_CONNECTIONS)
		return &st->catalog.pools[share];
	return share < SHARE_DEVICE ? &st->common->pools[share]
				    : &st->common->devices.list[share - SHARE_DEVICE].pool;
}

/* ---- lost rows; see state.h ------------------------------------------------------------------ */

bool lost_add(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	list_add_tail(&t->account->lost, &t->link);
	st->lost++;
	return ++t->account->lost_count > LOST_MAX;
}

uint32_t lost_oldest(const struct state *st, const struct account *account)
{
	return (uint32_t)(list_first_entry(&account->lost, struct tensor, link) - st->tensors);
}

void lost_remove(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (atomic_load(&catalog_row(&st->catalog, slot)->progress) != ROW_LOST)
		return;
	list_del(&t->link);
	t->account->lost_count--;
	st->lost--;
}

void slots_add(struct state *st, uint32_t *first, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot], *head;

	t->next = t->prev = slot;
	if (*first == CATALOG_NONE) {
		*first = slot;
		return;
	}
	head = &st->tensors[*first];
	t->next = *first;
	t->prev = head->prev;
	st->tensors[head->prev].next = slot;
	head->prev = slot;
}

void slots_remove(struct state *st, uint32_t *first, uint32_t slot)
{
	const struct tensor *t = &st->tensors[slot];

	if (*first == slot)
		*first = t->next == slot ? CATALOG_NONE : t->next;
	st->tensors[t->next].prev = t->prev;
	st->tensors[t->prev].next = t->next;
}
