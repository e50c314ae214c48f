/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches; see watch.h. The watches of a name are found by the hashes of its beginnings, for the
 * lengths that any watch has. A name without watches is marked so, until a watch comes or goes.
 *
 * ORDER: first the name gets its new meaning, then that is noted, then `seq` counts it, then the
 * sleepers on `seq` are woken. A reader loads `seq` before it reads the changes, and sleeps while
 * `seq` has that value (tests/model/watch.pml).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/watch.h"

struct watch {
	struct list link;     /* in its bucket */
	struct list watchers; /* of struct watcher, by of_watch */
	/* Clients with an id below @since may have published a watched name before the watch began.
	 * Of the other clients, only those with their bit (by index) in @producers may have. */
	uint64_t since, producers;
	struct charge charge; /* charged to one of the watchers */
	uint32_t index;
	uint32_t hash;
	bool prefix;
	uint16_t len;
	char text[];
};

/* One request of a client for the watch. */
struct watcher {
	struct list of_watch, of_client;
	struct watch *watch;
	struct client *client;
};

static uint32_t hash_of(const struct state *st, const struct name_key *key)
{
	return name_hash_low(name_hash(key, st->catalog.header->name_seed));
}

static struct watch *watch_find(const struct watch_table *t, const struct name_key *key,
				uint32_t hash, bool prefix)
{
	struct watch *w;

	list_for_each_entry(w, &t->buckets[hash % CATALOG_WATCHES], link) {
		if (w->hash == hash && w->prefix == prefix && w->len == key->len &&
		    !memcmp(w->text, key->text, key->len))
			return w;
	}
	return NULL;
}

static int table_make(struct state *st)
{
	if (st->watches)
		return 0;
	st->watches = calloc(1, sizeof(*st->watches));
	if (!st->watches)
		return -ENOMEM;
	for (unsigned i = 0; i < CATALOG_WATCHES; i++)
		list_init(&st->watches->buckets[i]);
	return 0;
}

/* ---- watchers ------------------------------------------------------------------------------- */

static void table_changed(struct watch_table *t)
{
	t->epoch += t->epoch == UINT32_MAX ? 2 : 1;
}

static void watch_count(struct watch_table *t, const struct watch *w, int n)
{
	uint16_t *length = &t->lengths[w->len];

	if (w->prefix)
		*length = (uint16_t)(*length + n);
	else
		t->names = (uint32_t)((int)t->names + n);
	t->count = (uint32_t)((int)t->count + n);
	table_changed(t);
}

static int watch_make(struct state *st, const struct client *c, const struct name_key *key,
		      uint32_t hash, bool prefix, struct watch **out)
{
	struct watch_table *t = st->watches;
	uint32_t index = 0;
	struct watch *w = calloc(1, sizeof(*w) + key->len);
	int r;

	if (!w)
		return -ENOMEM;
	r = charge_take(&w->charge, c->account, state_pool(st, SHARE_WATCHES), 1);
	if (r) {
		free(w);
		return r;
	}
	while (t->of[index]) /* there is a free index, since the pool counts them */
		index++;
	list_init(&w->watchers);
	w->since = st->common->next_client_id + 1;
	w->index = index;
	w->hash = hash;
	w->prefix = prefix;
	w->len = (uint16_t)key->len;
	memcpy(w->text, key->text, key->len);
	t->of[index] = w;
	list_add_tail(&t->buckets[hash % CATALOG_WATCHES], &w->link);
	watch_count(t, w, 1);
	atomic_fetch_add(&catalog_watch(&st->catalog, index)->generation, 1);
	*out = w;
	return 0;
}

static void watch_free(struct state *st, struct watch *w)
{
	atomic_fetch_add(&catalog_watch(&st->catalog, w->index)->generation, 1);
	watch_count(st->watches, w, -1);
	st->watches->of[w->index] = NULL;
	list_del(&w->link);
	charge_give(&w->charge);
	free(w);
}

static void watcher_free(struct state *st, struct client *c, struct watcher *watcher)
{
	struct watch *w = watcher->watch;

	list_del(&watcher->of_watch);
	list_del(&watcher->of_client);
	c->watches--;
	free(watcher);
	if (list_empty(&w->watchers)) {
		watch_free(st, w);
		return;
	}
	watcher = list_first_entry(&w->watchers, struct watcher, of_watch);
	charge_move(&w->charge, watcher->client->account);
}

int watch_new(struct state *st, struct client *c, const struct name_key *name, bool prefix,
	      uint32_t *watch, uint32_t *generation)
{
	uint32_t hash = hash_of(st, name);
	struct watcher *watcher;
	struct watch *w;
	int r = table_make(st);

	if (r)
		return r;
	if (c->watches >= CLIENT_WATCHES_MAX)
		return STATE_E_WATCHES;
	watcher = calloc(1, sizeof(*watcher));
	if (!watcher)
		return -ENOMEM;
	w = watch_find(st->watches, name, hash, prefix);
	r = w ? 0 : watch_make(st, c, name, hash, prefix, &w);
	if (r) {
		free(watcher);
		return r;
	}
	watcher->watch = w;
	watcher->client = c;
	list_add_tail(&w->watchers, &watcher->of_watch);
	list_add_tail(&c->watching, &watcher->of_client);
	c->watches++;
	*watch = w->index;
	*generation = catalog_watch(&st->catalog, w->index)->generation;
	return 0;
}

bool watch_hint_fits(struct state *st, const struct client *c)
{
	const struct pool *pool = state_pool(st, SHARE_WATCHES);

	return c->watches < CLIENT_WATCHES_MAX / 2 && pool->used < pool->capacity / 2 &&
	       account_used(c->account, pool) < account_max(c->account, pool) / 2;
}

void watch_end(struct state *st, struct client *c, uint32_t watch, uint32_t generation)
{
	struct watcher *watcher;

	if (catalog_watch(&st->catalog, watch)->generation != generation)
		return;
	list_for_each_entry(watcher, &c->watching, of_client) {
		if (watcher->watch->index == watch) {
			watcher_free(st, c, watcher);
			return;
		}
	}
}

void watches_leave(struct state *st, struct client *c)
{
	while (!list_empty(&c->watching))
		watcher_free(st, c, list_first_entry(&c->watching, struct watcher, of_client));
}

void watches_adopt(struct state *st)
{
	_Atomic uint32_t *coming = &st->catalog.header->coming;

	if (atomic_load(coming) & 1) /* odd: the former daemon died before it noted a name */
		atomic_fetch_add(coming, 1);
	for (uint32_t i = 0; i < CATALOG_WATCHES; i++) {
		struct catalog_watch *common = catalog_watch(&st->catalog, i);

		if (!(common->generation & 1))
			continue;
		atomic_fetch_add(&common->generation, 1);
		atomic_fetch_add(&common->seq, 1);
		catalog_wake_watch_later(&st->catalog, i);
	}
}

/* ---- changes -------------------------------------------------------------------------------- */

static void watch_note(struct state *st, const struct watch *w, uint32_t name, bool came)
{
	struct catalog_watch *common = catalog_watch(&st->catalog, w->index);
	uint32_t seq = common->seq;

	atomic_store(&common->changes[seq % WATCH_CHANGES], name);
	if (came)
		atomic_store(&common->came, seq + 1);
	else if (seq + 1 - common->came > WATCH_CAME_AGE)
		atomic_store(&common->came, seq + 1 - WATCH_CAME_AGE);
	atomic_store(&common->seq, seq + 1);
}

static void watch_changed(struct state *st, struct watch *w, uint32_t name, bool came,
			  const struct client *by, unsigned *wakes)
{
	if (by)
		w->producers |= (uint64_t)1 << by->index % 64;
	watch_note(st, w, name, came);
	if (wakes)
		catalog_wake_watch(&st->catalog, w->index, wakes);
}

void watches_note(struct state *st, uint32_t name, bool came, struct client *by, unsigned *wakes)
{
	struct watch_table *t = st->watches;
	char text[TENSOR_NAME_MAX];
	struct name_key key = { .text = text };
	struct watch *w;
	bool found = false;
	size_t len;

	if (by)
		by->published = true;
	if (!t || !t->count || st->names.info[name].unwatched == t->epoch)
		return;
	len = name_text(&st->names, name, text);
	for (key.len = 0; key.len <= len; key.len++) {
		w = t->lengths[key.len] ? watch_find(t, &key, hash_of(st, &key), true) : NULL;
		if (w)
			watch_changed(st, w, name, came, by, wakes);
		found |= w != NULL;
	}
	key.len = len;
	w = t->names ? watch_find(t, &key, hash_of(st, &key), false) : NULL;
	if (w)
		watch_changed(st, w, name, came, by, wakes);
	if (!found && !w)
		st->names.info[name].unwatched = t->epoch;
}

void watches_producer_ended(struct state *st, const struct client *c)
{
	struct watch_table *t = st->watches;

	for (uint32_t i = 0; c->published && t && t->count && i < CATALOG_WATCHES; i++) {
		struct watch *w = t->of[i];

		if (!w || (c->id >= w->since && !(w->producers >> c->index % 64 & 1)))
			continue;
		atomic_fetch_add(&catalog_watch(&st->catalog, i)->ended, 1);
		watch_note(st, w, CATALOG_NONE, false);
		catalog_wake_watch_later(&st->catalog, i);
	}
}
