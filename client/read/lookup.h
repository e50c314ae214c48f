/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tensor that a name means, in rings too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tensorlease/tensorlease.h>

#include "client/connection/client.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/session.h"
#include "proto/name_key.h"
#include "proto/ring_layout.h"

/* The word to sleep on after a look. */
struct wake_word {
	const _Atomic uint32_t *word;
	uint32_t seen; /* its value when nothing was found, or the value for the tensor found */
	uint64_t ring; /* ring of the word: sleeper_ask_wakes() before a sleep; 0: a catalog's word
			*/
	uint64_t version; /* of the tensor found */
};

/* The ring in which a name was found. */
struct ring_seen {
	uint64_t ring; /* 0: the name has none */
	const struct ring_page *page;
	uint64_t word;
};

/*
 * Takes a lease on the tensor that the name means, if its version is above @newer_than. Returns 0
 * with *@ref, LEASE_E_NONE, LEASE_E_OLD, another outcome of lease_protocol.h, or -EPROTO. Until
 * lease_stands() is true, neither the lease nor the identity of the tensor may be relied on.
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);
/* lookup_take() without a system call: LEASE_E_SLOW if the daemon or a producer is not done with
 * what it changes. */
int lookup_take_at_once(struct session *s, const struct name_key *key, uint64_t newer_than,
			uint64_t *ref);
/* lookup_take(), but asks the daemon for the page instead of returning LEASE_E_RING. */
int lookup_find(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);

/*
 * lookup_find() for a wait: also fills *@wake, even if a tensor was found, since that may be lost.
 */
int lookup_wait(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref,
		struct wake_word *wake);

/* So many looks in a row at the same word of a ring, without a tensor, show that its producer
 * lies. */
enum { LOOKUP_LIES_MAX = 1000 };

/* Backoff for looks at an entry that the daemon is just changing. Starts as { 0 }. */
struct backoff {
	unsigned tries;
	int64_t deadline;
	uint64_t word;	/* of a ring's page */
	unsigned wrong; /* how often that word named a tensor that could not be leased */
	bool at_once;	/* makes no system call */
};

/* To be called before another look. Returns 0, LEASE_E_UNSERVED if the daemon has ended,
 * -ETIMEDOUT, or LEASE_E_SLOW if @p->at_once forbids it to yield. */
int lookup_again(struct session *s, struct backoff *p);

/*
 * To be called when no lease was to be had on *@ref, the `current` of some name. If that is a
 * member of a group, takes a lease on the tensor that the name means. LEASE_E_STALE: the name means
 * nothing; LOOKUP_E_AGAIN; or another outcome of lease_protocol.h.
 */
int lookup_hold_member(struct session *s, uint64_t *ref);

/*
 * To be called after LEASE_E_RING, and again as long as that comes back. Asks the daemon for the
 * page of @ring, which it may refuse although the catalog has the ring. *@deadline starts as 0.
 * Returns 0 (look again), an outcome of ring_ask_page(), or -ETIMEDOUT if the refusals do not end.
 */
int lookup_page(struct session *s, uint64_t ring, int64_t *deadline);

/*
 * Finds the tensor of a name whose `current` is *@ref, the ref of a ring. Returns 0 with *@ref,
 * which is 0 if the ring is over (look again); LEASE_E_RING; or -EPROTO if the page has named no
 * tensor for too long.
 */
int lookup_ring(struct session *s, uint64_t *ref, struct ring_seen *seen, struct backoff *p);

/*
 * Takes a lease on the tensor that the entry at @index means now, whichever name has the entry.
 * Returns 0 with *@ref; LEASE_E_STALE if the entry means nothing; another outcome of
 * lease_protocol.h; or that of lookup_again(), for which @at_once is.
 *
 * A new version may come between reading `current` and G3. The entry has the new version by then,
 * so the entry is read again. Or the tensor belongs to a group that is being published. The lease
 * may not be relied on before lease_stands().
 */
static inline int lookup_hold(struct session *s, uint32_t index, uint64_t *ref,
			      struct ring_seen *seen, bool at_once)
{
	const struct catalog_name *name = &s->catalog.names[index];
	struct backoff backoff = { .at_once = at_once };
	int r = 0;

	do {
		seen->ring = 0;
		*ref = atomic_load_explicit(&name->current, memory_order_acquire);
		if (!*ref)
			return LEASE_E_STALE;
		if (__builtin_expect(*ref & REF_RING, 0)) {
			r = lookup_ring(s, ref, seen, &backoff);
			if (r)
				return r;
		}
		r = lease_hold(s, *ref);
		if (__builtin_expect(r != LEASE_E_STALE, 1))
			return r;
		r = seen->ring ? LOOKUP_E_AGAIN : lookup_hold_member(s, ref);
		if (r != LOOKUP_E_AGAIN)
			return r;
		r = lookup_again(s, &backoff);
	} while (!r);
	return r;
}

/* Requests of a consumer to the daemon about a name's ring: for its page, once, and for wakes. */

/* Maps the page of that ring. Returns 0 if it is mapped or the ring is over, LEASE_E_UNSERVED, or a
 * negative errno. */
int ring_ask_page(struct session *s, uint64_t ring);
/* To be called before a sleep on the word of the ring's page: from then on the producer wakes
 * sleepers. Returns 0, LEASE_E_UNSERVED, or a negative errno. */
int ring_ask_wakes(struct session *s, uint64_t ring, int64_t deadline);
