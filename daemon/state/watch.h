/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches: clients ask to be told when one name, or any name with a prefix, gets another meaning.
 * The catalog has an entry for each watched name or prefix, shared by all its watchers, and the
 * changes are noted there. A publish under a name without watchers costs one more read. Loop
 * thread only.
 */
#pragma once

#include "daemon/state/client.h"

enum { CLIENT_WATCHES_MAX = 256 };

/* The watches of a namespace; all zero before the first one. */
struct watch_table {
	struct list buckets[CATALOG_WATCHES];  /* of struct watch, by hash */
	struct watch *of[CATALOG_WATCHES];     /* by index */
	uint16_t lengths[TENSOR_NAME_MAX + 1]; /* how many prefixes of that length are watched */
	uint32_t names;			       /* how many single names are watched */
	uint32_t count;
	uint32_t epoch; /* changes when a watch comes or goes; never 0 */
};

/*
 * Watches a name, or with @prefix all names that start with it, for @c. *@watch is its entry,
 * and *@generation the entry's generation. The entry is charged to one of its watchers. Returns 0,
 * STATE_E_WATCHES if @c has too many, -ENOMEM, or an outcome of account_take().
 */
int watch_new(struct state *st, struct client *c, const struct name_key *name, bool prefix,
	      uint32_t *watch, uint32_t *generation);
/* True if @c may have a watch that is only an optimization. Such watches leave free half of all
 * entries, and half of those that its user may have. */
bool watch_hint_fits(struct state *st, const struct client *c);
/* Ends one watch of the client on that entry. Does nothing if it has none. */
void watch_end(struct state *st, struct client *c, uint32_t watch, uint32_t generation);
/* Ends all watches of a client, at most CLIENT_WATCHES_MAX. */
void watches_leave(struct state *st, struct client *c);
/* Ends the watches that a former daemon had. Their clients notice, and ask again. */
void watches_adopt(struct state *st);

/* Notes that a name has another meaning; with @came, that it had none before. @by is the client
 * that published it, or NULL. If @wakes is NULL, sleepers are not woken yet. */
void watches_note(struct state *st, uint32_t name, bool came, struct client *by, unsigned *wakes);
/* Notes that a client's connection ends, so that its tensors have no producer any more. */
void watches_producer_ended(struct state *st, const struct client *c);
