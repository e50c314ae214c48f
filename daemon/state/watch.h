/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches: clients that want to know when one name, or any name that starts with some text, means
 * something else. The catalog has an entry for each such name or text, which all who watch it
 * share; the changes are noted there. A publish under a name that nobody watches costs a look at
 * one number. Loop thread only.
 */
#pragma once

#include "daemon/state/client.h"

enum { CLIENT_WATCHES_MAX = 256 };

/* What there is of them in a namespace; all zero before the first one. */
struct watch_table {
	struct list buckets[CATALOG_WATCHES];  /* of struct watch, by hash */
	struct watch *of[CATALOG_WATCHES];     /* by index */
	uint16_t lengths[TENSOR_NAME_MAX + 1]; /* how many there are of a prefix of that length */
	uint32_t names;			       /* how many there are of one name */
	uint32_t count;
	uint32_t epoch; /* changes when a watch comes or goes; never 0 */
};

/*
 * Watches a name, or with @prefix all that start so, for @c. *@watch is the entry, which has that
 * *@generation. STATE_E_WATCHES: it has too many; -ENOMEM; or what account_take() returns: what is
 * charged is what somebody watches, to one of those who do.
 */
int watch_new(struct state *st, struct client *c, const struct name_key *name, bool prefix,
	      uint32_t *watch, uint32_t *generation);
/* The client watches that once less. Nothing happens if it does not. */
void watch_end(struct state *st, struct client *c, uint32_t watch, uint32_t generation);
/* The client ends; at most CLIENT_WATCHES_MAX. */
void watches_leave(struct state *st, struct client *c);
/* Nobody watches what a former daemon's clients watched: they find that out, and ask again. */
void watches_adopt(struct state *st);

/*
 * The name means something else. With @came it has meant nothing before. @by: who has published it,
 * or NULL. @wakes NULL: nobody is to be woken yet.
 */
void watches_note(struct state *st, uint32_t name, bool came, struct client *by, unsigned *wakes);
/* Its connection ends: what it published has no producer any more. */
void watches_producer_ended(struct state *st, const struct client *c);
