/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the tensor that a name means, and taking a lease on it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tensorlease/tensorlease.h>

#include "client/session/client.h"
#include "client/session/hold.h"
#include "proto/name_key.h"
#include "proto/ring_layout.h"

/* What to sleep on after a look. */
struct wake_word {
	const _Atomic uint32_t *word;
	uint32_t seen;	  /* its value when there was nothing, or what was found */
	uint64_t ring;	  /* whose word it is: ring_ask_wakes() before a sleep; 0: a catalog's */
	uint64_t version; /* of what was found */
	uint64_t published_ns; /* CLOCK_REALTIME, of what was found */
};

/* Where a ring's name was found. */
struct ring_seen {
	uint64_t ring; /* 0: it has none */
	const struct ring_page *page;
	uint64_t word;
};

/*
 * Takes a lease on the tensor that the name means, if its version is above @newer_than. 0 and
 * *@ref; LEASE_E_NONE, LEASE_E_OLD and the others of hold.h, or -EPROTO. The lease, and that it is
 * the right tensor, is not to be believed before lease_stands().
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);
/* The same; but where that says LEASE_E_RING, this asks the daemon for the page. */
int lookup_find(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);

/*
 * The same for somebody who waits: fills *@wake, which holds for what was found as well, since it
 * may be lost.
 */
int lookup_wait(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref,
		struct wake_word *wake);

/* How long somebody has looked at what the daemon is just changing. Starts as { 0 }. */
struct patience {
	unsigned tries;
	int64_t deadline;
	uint64_t word;	/* of a ring's page, */
	unsigned wrong; /* which has said so often what was not so */
};

/*
 * Before another look at it: 0; LEASE_E_UNSERVED: the daemon is gone; or -ETIMEDOUT.
 */
int lookup_again(struct session *s, struct patience *p);

/*
 * There was no lease on *@ref, the `current` of some name. If it is a member of a group: takes one
 * on what the name means. LEASE_E_GONE: nothing; LOOKUP_E_AGAIN; or another outcome of hold.h.
 */
int lookup_hold_member(struct session *s, uint64_t *ref);

/*
 * After LEASE_E_RING: asks the daemon for the page of @ring, again and again if it says that there
 * is none though the catalog says that there is. *@deadline starts as 0. 0: look again; or as
 * ring_ask_page(); -ETIMEDOUT: it goes on saying so.
 */
int lookup_page(struct session *s, uint64_t ring, int64_t *deadline);

/*
 * What the name means whose `current` is *@ref, that of a ring. 0 and *@ref, which is 0 if the ring
 * is over: look again; LEASE_E_RING; or -EPROTO: its page has named nothing for too long.
 */
int lookup_ring(struct session *s, uint64_t *ref, struct ring_seen *seen, struct patience *p);

/*
 * Takes a lease on what the entry at @index means now, whose ever name that is: 0 and *@ref;
 * LEASE_E_GONE: nothing; another outcome of hold.h; or -ETIMEDOUT.
 *
 * A new version may come between reading `current` and G3. The entry says so by then, so it is read
 * again. Or the tensor is one of a group that is being published. The lease is not to be believed
 * before lease_stands().
 */
static inline int lookup_hold(struct session *s, uint32_t index, uint64_t *ref,
			      struct ring_seen *seen)
{
	const struct catalog_name *name = &s->catalog.names[index];
	struct patience patience = { 0 };
	int r = 0;

	do {
		seen->ring = 0;
		*ref = atomic_load_explicit(&name->current, memory_order_acquire);
		if (!*ref)
			return LEASE_E_GONE;
		if (__builtin_expect(*ref & REF_RING, 0)) {
			r = lookup_ring(s, ref, seen, &patience);
			if (r)
				return r;
		}
		r = lease_hold(s, *ref);
		if (__builtin_expect(r != LEASE_E_GONE, 1))
			return r;
		r = seen->ring ? LOOKUP_E_AGAIN : lookup_hold_member(s, ref);
		if (r != LOOKUP_E_AGAIN)
			return r;
		r = lookup_again(s, &patience);
	} while (!r);
	return r;
}
