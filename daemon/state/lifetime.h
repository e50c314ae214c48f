/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lifetimes: which tensors end by themselves, and which may be given up. This file keeps the books;
 * expire.h ends those whose time has come, and evict.h gives some up to make room. What a tensor's
 * lifetime is stands in its row: ROW_OWNER_BOUND, ROW_EVICTABLE, expires_ns.
 */
#pragma once

#include "daemon/state/client.h"

/*
 * Sets aside what lifetime_begin() needs for an evictable tensor of @c in @seg, which may be NULL.
 * If it does not come to that: lifetime_tidy(). -ENOMEM.
 */
int lifetime_prepare(struct state *st, const struct client *c, const struct segment *seg);
void lifetime_tidy(struct state *st);
/* The same for many tensors that are published in steps: until lifetime_unreserve() it stays. */
int lifetime_reserve(struct state *st, const struct client *c, const struct segment *seg,
		     struct evictables **set);
void lifetime_unreserve(struct evictables *set);
/* The row is LIVE; @c published it. */
void lifetime_begin(struct state *st, struct client *c, uint32_t slot);
/* The row is LIVE no more. */
void lifetime_end(struct state *st, uint32_t slot);

/*
 * Notes what its ledger says of when it used evictable tensors, before the ledger goes: goes on at
 * c->end.slot with about so many looks. True: it has come to the end.
 */
bool lifetime_remember(struct state *st, struct client *c, unsigned *looks);

/* When to call expire_step() next, by the monotonic clock; DEADLINE_NEVER. */
int64_t lifetime_due(const struct state *st);
/* That may have changed. */
void lifetime_schedule(struct state *st);

/* The evictable tensors of @uid on @device (NULL: in shared memory), or NULL: there are none. */
struct evictables *lifetime_evictables(const struct state *st, uint32_t uid,
				       const struct device *device);

/* When the tensor was published, or got, as a key of evictables.idle: gets come after commits. */
static inline uint64_t use_of_commit(uint64_t clock)
{
	return clock << 1;
}

static inline uint64_t use_of_get(uint64_t clock)
{
	return clock << 1 | 1;
}
