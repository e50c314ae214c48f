/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lifetimes: which tensors end by themselves, and which may be evicted. This file keeps the lists;
 * expire.h ends tensors whose time has come, and evicts some to free space. A tensor's lifetime is
 * in its row: ROW_OWNER_BOUND, ROW_EVICTABLE, expires_ns.
 */
#pragma once

#include "daemon/state/client.h"

/* Sets aside memory that lifetime_begin() needs for an evictable tensor of @c in @seg, which may be
 * NULL. Call lifetime_tidy() if the tensor is not published. -ENOMEM. */
int lifetime_prepare(struct state *st, const struct client *c, const struct segment *seg);
void lifetime_tidy(struct state *st);
/* Does the same for many tensors that are published in steps. The memory stays set aside until
 * lifetime_unreserve(). */
int lifetime_reserve(struct state *st, const struct client *c, const struct segment *seg,
		     struct evictables **set);
void lifetime_unreserve(struct evictables *set);
/* To be called when the row is LIVE; @c published it. */
void lifetime_begin(struct state *st, struct client *c, uint32_t slot);
/* Like lifetime_begin(), for a tensor that a former daemon published: its last known use is its
 * commit. */
void lifetime_go_on(struct state *st, struct client *c, uint32_t slot);
/* To be called when the row is not LIVE any more. */
void lifetime_end(struct state *st, uint32_t slot);
/* Makes expire_step() unname the tensor in the next turn. Its row must be LIVE, and in no ring. */
void lifetime_end_soon(struct state *st, uint32_t slot);
/* To be called when a LIVE row has lost its bytes. */
void lifetime_lost(struct state *st, uint32_t slot);

/* Notes from the client's ledger, before that is dropped, when the client used evictable tensors.
 * Continues at c->end.slot, for about *@budget looks. True: all is noted. */
bool lifetime_remember(struct state *st, struct client *c, unsigned *budget);

/* When to call expire_step() next, by the monotonic clock, or DEADLINE_NEVER. */
int64_t lifetime_due(const struct state *st);
/* To be called when lifetime_due() may have changed. */
void lifetime_schedule(struct state *st);

/* The evictable tensors of @uid on @device (NULL: in shared memory), or NULL: there are none. */
struct evictables *lifetime_evictables(const struct state *st, uint32_t uid,
				       const struct device *device);

/* The time of a commit or a get as a key of evictables.idle. On a tie, gets come after commits. */
static inline uint64_t use_of_commit(uint64_t clock)
{
	return clock << 1;
}

static inline uint64_t use_of_get(uint64_t clock)
{
	return clock << 1 | 1;
}
