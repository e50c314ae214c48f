/* SPDX-License-Identifier: Apache-2.0 */
/* Ends tensors early: when their lifetime is over, with their owner's connection, or for space. */
#pragma once

#include "daemon/state/lifetime.h"

/* Ends a few tensors whose lifetime is over. lifetime_due() tells when to call again. @now is a
 * time of the monotonic clock. */
void expire_step(struct state *st, int64_t now);
/* Ends tensors that are bound to the connection of @c, as by DELETE, and looks at up to *@budget
 * rows. True: that was all. */
bool expire_bound(struct state *st, struct client *c, unsigned *budget);
/* Unnames all tensors in @seg, from the row @seg->spoiled on, by looking at @budget rows. True:
 * that was all. */
bool expire_segment(struct state *st, struct segment *seg, unsigned budget);

/* Eviction: gives up evictable tensors that nobody holds, least recently used first. */

/* The state of evictions for one request for space, kept while the request is repeated. */
struct eviction {
	uint64_t left;	 /* tensors to look at before all count as held; 0: not begun */
	uint64_t since;	 /* lifetimes.looks before the first of these looks */
	bool only_own;	 /* tensors of other users would not help */
	uint64_t before; /* tensors used since then stay (as a key of evictables.idle); or 0 */
	int64_t rest;	 /* after a search of several calls, none begins before this time: waiting
			    requests wake each other */
};

enum evicted {
	EVICTED_NONE,  /* all tensors that could be given up for @c are held */
	EVICTED_ONE,   /* a tensor was given up: the request may succeed now */
	EVICTED_LATER, /* the tensors looked at are held, but there are more */
};

/* Makes space for @c on @device (NULL: in shared memory) by giving up one tensor: first one of its
 * user, then one of another user unless @own. Looks at a bounded number of them. */
enum evicted evict_one(struct state *st, const struct client *c, const struct device *device,
		       bool own, struct eviction *eviction);
/* To be called after EVICTED_LATER: the request is tried again in the next step. */
void evict_continue(struct state *st);
/* True if tensors in shared memory may be given up for @c as soon as nobody holds them. */
bool evict_may(const struct state *st, const struct client *c, bool own);
/*
 * Lets lifetime_due() call for another look while the request waits, since the last release of a
 * tensor that keeps its name is not reported to us. Does nothing if no tensor can be given up for
 * the request.
 */
void evict_wait(struct state *st, const struct client *c);
