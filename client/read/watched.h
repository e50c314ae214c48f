/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a watch: the last seen state of each, and the events reported of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <tensorlease/watch.h>

#include "client/read/names.h"
#include "util/list.h"

/* A name, as the watch saw it last. */
struct watched {
	struct list link;      /* in watched_names.all */
	struct list due;       /* in watched_names.due while it has an event to report */
	struct list of_rings;  /* in watched_names.rings while it has a ring */
	uint32_t index;	       /* of its entry */
	uint64_t ref;	       /* 0: it means nothing */
	struct ring_seen ring; /* where it was found */
	uint64_t version, producer;
	bool lost, ended; /* its memory is lost; its producer has ended */
	/* reported events: */
	uint64_t told; /* the version reported last; 0: none */
	bool lost_told, ended_told;
	char text[];
};

struct watched_names {
	struct list all; /* of struct watched, by link */
	struct list rings, due;
	void *by_index, *by_text; /* of struct watched; tsearch(3) */
	bool restarted;		  /* event to report: another daemon has begun anew */
};

void watched_init(struct watched_names *w);
void watched_free_all(struct watched_names *w);

/* The name whose entry is at @index, or NULL. */
struct watched *watched_at(const struct watched_names *w, uint32_t index);
/* Finds or adds the name @text, whose entry is at @index now. NULL: no memory. */
struct watched *watched_get(struct watched_names *w, uint32_t index, const char *text);
/* Notes that the name has this meaning now. */
void watched_found(struct watched_names *w, const struct session *s, struct watched *e,
		   const struct name_entry *entry);
/* Notes that the name means nothing. Frees it if nothing was ever reported of it. */
void watched_gone(struct watched_names *w, struct watched *e);
/* Looks whether the name's producer is still there. */
void watched_look_producer(struct watched_names *w, const struct session *s, struct watched *e);

/* True if there is an event to report. */
static inline bool watched_news(const struct watched_names *w)
{
	return w->restarted || !list_empty(&w->due);
}

/* Takes the next event. Returns false if there is none. */
bool watched_take(struct watched_names *w, tl_watch_event *event);
/* For TL_WATCH_NEW: takes the present state of all names as reported. */
void watched_skip(struct watched_names *w);
