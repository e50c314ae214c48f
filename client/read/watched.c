/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a watch, found by index and by text, and those with an event to report. */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "client/read/watched.h"

void watched_init(struct watched_names *w)
{
	*w = (struct watched_names){ .by_index = NULL };
	list_init(&w->all);
	list_init(&w->rings);
	list_init(&w->due);
}

/* ---- Names ---- */

static int compare_index(const void *a, const void *b)
{
	uint32_t x = ((const struct watched *)a)->index, y = ((const struct watched *)b)->index;

	return (x > y) - (x < y);
}

static int compare_text(const void *a, const void *b)
{
	return strcmp(((const struct watched *)a)->text, ((const struct watched *)b)->text);
}

static int compare_key(const void *key, const void *b)
{
	return strcmp(key, ((const struct watched *)b)->text);
}

struct watched *watched_at(const struct watched_names *w, uint32_t index)
{
	const struct watched key = { .index = index };
	void *const *node = tfind(&key, &w->by_index, compare_index);

	return node ? *node : NULL;
}

/* Takes the name out of `by_index`: its entry is free, or another name has it. */
static void watched_unindex(struct watched_names *w, struct watched *e)
{
	if (e->index != CATALOG_NONE)
		tdelete(e, &w->by_index, compare_index);
	e->index = CATALOG_NONE;
}

static void watched_free(struct watched_names *w, struct watched *e)
{
	watched_unindex(w, e);
	tdelete(e, &w->by_text, compare_text);
	list_del(&e->link);
	list_del(&e->due);
	list_del(&e->of_rings);
	free(e);
}

void watched_free_all(struct watched_names *w)
{
	struct watched *e, *after;

	list_for_each_entry_safe(e, after, &w->all, link)
		watched_free(w, e);
}

static struct watched *watched_new(struct watched_names *w, uint32_t index, const char *text)
{
	size_t size = strlen(text) + 1;
	struct watched *e = calloc(1, sizeof(*e) + size);
	void *node;

	if (!e)
		return NULL;
	memcpy(e->text, text, size);
	e->index = index;
	list_init(&e->link);
	list_init(&e->due);
	list_init(&e->of_rings);
	node = tsearch(e, &w->by_text, compare_text);
	if (node && tsearch(e, &w->by_index, compare_index)) {
		list_add_tail(&w->all, &e->link);
		return e;
	}
	if (node)
		tdelete(e, &w->by_text, compare_text);
	free(e);
	return NULL;
}

struct watched *watched_get(struct watched_names *w, uint32_t index, const char *text)
{
	struct watched *e = watched_at(w, index);
	void *const *node = e ? NULL : tfind(text, &w->by_text, compare_key);

	if (e)
		return e;
	if (!node)
		return watched_new(w, index, text);
	e = *node;
	watched_unindex(w, e);
	e->index = index;
	if (tsearch(e, &w->by_index, compare_index))
		return e;
	e->index = CATALOG_NONE;
	return NULL;
}

static void watched_due(struct watched_names *w, struct watched *e)
{
	if (list_empty(&e->due))
		list_add_tail(&w->due, &e->due);
}

void watched_gone(struct watched_names *w, struct watched *e)
{
	if (!e->told) {
		watched_free(w, e);
		return;
	}
	if (e->ref)
		watched_due(w, e);
	e->ref = 0;
	list_del(&e->of_rings);
	watched_unindex(w, e);
}

void watched_look_producer(struct watched_names *w, const struct session *s, struct watched *e)
{
	uint32_t index = (uint32_t)e->producer;

	e->ended = e->producer && (index >= s->catalog.max_clients ||
				   atomic_load(&s->catalog.clients[index]) !=
					   live_word((uint32_t)(e->producer >> 32)));
	if (e->ref && e->ended && !e->ended_told)
		watched_due(w, e);
}

void watched_found(struct watched_names *w, const struct session *s, struct watched *e,
		   const struct name_entry *entry)
{
	e->ref = entry->ref;
	e->ring = entry->seen;
	list_del(&e->of_rings);
	if (e->ring.ring)
		list_add_tail(&w->rings, &e->of_rings);
	if (e->version != entry->info.version)
		e->lost_told = e->ended_told = false;
	e->version = entry->info.version;
	e->producer = entry->producer;
	e->lost = entry->info.lost;
	if (e->version != e->told || (e->lost && !e->lost_told))
		watched_due(w, e);
	watched_look_producer(w, s, e);
}

/* ---- Telling ---- */

static void tell(struct watched *e, tl_watch_event *event, enum tl_watch_what what,
		 uint64_t version)
{
	event->what = what;
	event->version = version;
	memcpy(event->name, e->text, strlen(e->text) + 1);
}

/* Takes an event of the name, which was due. False: what it was due for is not so any more. */
static bool take(struct watched_names *w, struct watched *e, tl_watch_event *event)
{
	list_del(&e->due);
	if (!e->ref) {
		tell(e, event, TL_WATCH_DELETED, e->told);
		watched_free(w, e);
		return true;
	}
	if (e->version != e->told) {
		tell(e, event, TL_WATCH_PUBLISHED, e->version);
		event->skipped = e->told && e->version > e->told ? e->version - e->told - 1 : 0;
		e->told = e->version;
	} else if (e->lost && !e->lost_told) {
		tell(e, event, TL_WATCH_LOST, e->version);
		e->lost_told = true;
	} else if (e->ended && !e->ended_told) {
		tell(e, event, TL_WATCH_PRODUCER_GONE, e->version);
		e->ended_told = true;
	} else {
		return false;
	}
	if ((e->lost && !e->lost_told) || (e->ended && !e->ended_told))
		watched_due(w, e);
	return true;
}

bool watched_take(struct watched_names *w, tl_watch_event *event)
{
	bool taken = false;

	*event = (tl_watch_event){ .size = sizeof(*event) };
	if (w->restarted) {
		w->restarted = false;
		event->what = TL_WATCH_RESTARTED;
		return true;
	}
	while (!taken && !list_empty(&w->due))
		taken = take(w, list_first_entry(&w->due, struct watched, due), event);
	return taken;
}

void watched_skip(struct watched_names *w)
{
	struct watched *e;

	list_for_each_entry(e, &w->all, link) {
		e->told = e->version;
		e->lost_told = e->lost;
		e->ended_told = e->ended;
		list_del(&e->due);
	}
}
