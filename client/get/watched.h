/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a watch: what was seen of each, and what was told of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/watch.h>

#include "client/get/names.h"
#include "util/list.h"

/* A name, as it was seen last. */
struct watched {
	struct list link;      /* in watched_names.all */
	struct list due;       /* in watched_names.due while there is something to be told of it */
	struct list of_rings;  /* in watched_names.rings while it has one */
	uint32_t index;	       /* of its entry */
	uint64_t ref;	       /* 0: it means nothing */
	struct ring_seen ring; /* where it was found */
	uint64_t version, producer;
	bool lost, gone; /* its memory; its producer */
	/* what was told of it */
	uint64_t told; /* this version; 0: nothing */
	bool lost_told, gone_told;
	char text[];
};

struct watched_names {
	struct list all; /* of struct watched, by link */
	struct list rings, due;
	void *by_index, *by_text; /* of struct watched; tsearch(3) */
	bool restarted;		  /* to be told: another daemon has begun anew */
};

void watched_init(struct watched_names *w);
void watched_free_all(struct watched_names *w);

/* The one that has the entry @index, or NULL. */
struct watched *watched_at(const struct watched_names *w, uint32_t index);
/* The name @text, which has the entry @index now. NULL: no memory. */
struct watched *watched_get(struct watched_names *w, uint32_t index, const char *text);
/* It means that now. */
void watched_found(struct watched_names *w, const struct session *s, struct watched *e,
		   const struct name_entry *entry);
/* It means nothing. Whoever was never told of it need not know. It may be freed. */
void watched_gone(struct watched_names *w, struct watched *e);
/* Is its producer still there? */
void watched_look_producer(struct watched_names *w, const struct session *s, struct watched *e);

/* Is there something to be told? */
static inline bool watched_news(const struct watched_names *w)
{
	return w->restarted || !list_empty(&w->due);
}

/* Takes the next thing to be told. Returns false if there is none. */
bool watched_take(struct watched_names *w, tl_watch_event *event);
/* With TL_WATCH_NEW: what is there counts as told. */
void watched_skip(struct watched_names *w);
