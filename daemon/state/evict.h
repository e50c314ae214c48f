/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: gives up tensors that were published as evictable and that nobody holds, the least
 * recently used first. */
#pragma once

#include "daemon/state/lifetime.h"

/* A request for room, from its first failure to its last. */
struct eviction {
	uint64_t left; /* tensors to look at before it is believed that all are held; 0: none yet */
};

enum evicted {
	EVICTED_NONE,  /* all that could be given up for @c are held */
	EVICTED_ONE,   /* the room of one may be there now */
	EVICTED_LATER, /* those that were looked at are held; there are more */
};

/*
 * Makes room for @c on @device (NULL: in shared memory) by giving up one tensor: its own first,
 * then others' unless @own says not to. Looks at a bounded number of them.
 */
enum evicted evict_one(struct state *st, const struct client *c, const struct device *device,
		       bool own, struct eviction *eviction);
/* After EVICTED_LATER: has the request tried again in the next step. */
void evict_continue(struct state *st);
/*
 * The request waits: calls for another look when lifetime_due() says so, since nobody tells us of
 * the last release of a tensor that has its name. Nothing happens if nothing can be given up for
 * it.
 */
void evict_wait(struct state *st, const struct client *c);
