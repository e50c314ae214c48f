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

/* The word that is woken when a tensor of that name is committed. */
static inline const _Atomic uint32_t *lookup_wake(const struct session *s,
						  const struct name_key *key)
{
	return &s->catalog.header->wake[catalog_wake_word(name_key_low(key))];
}

/*
 * Takes a lease on the tensor that the name means, if its version is above @newer_than. 0 and
 * *@ref; LEASE_E_NONE, LEASE_E_OLD and the others of hold.h, or -EPROTO.
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);

/* How long somebody has looked at what the daemon is just changing. Starts as { 0 }. */
struct patience {
	unsigned tries;
	int64_t deadline;
};

/*
 * Before another look at it: 0; LEASE_E_UNSERVED: the daemon is gone; or -ETIMEDOUT.
 */
int lookup_again(struct session *s, struct patience *p);

/*
 * Takes a lease on what the entry at @index means now, whose ever name that is: 0 and *@ref;
 * LEASE_E_GONE: nothing; another outcome of hold.h; or -ETIMEDOUT.
 *
 * A new version may come between reading `current` and G3. The entry says so by then, so it is read
 * again. Or the tensor is one of a group that is being published, which will be done soon.
 */
static inline int lookup_hold(struct session *s, uint32_t index, uint64_t *ref)
{
	const struct catalog_name *name = &s->catalog.names[index];
	struct patience patience = { 0 };
	int r;

	do {
		*ref = atomic_load_explicit(&name->current, memory_order_acquire);
		if (!*ref)
			return LEASE_E_GONE;
		r = lease_hold(s, *ref);
		if (__builtin_expect(r != LEASE_E_GONE, 1))
			return r;
		r = lookup_again(s, &patience);
	} while (!r);
	return r;
}

/*
 * Takes a lease on what @key means now. 0, *@ref and a count in @use: release, then client_leave();
 * LEASE_E_NONE; LEASE_E_TOO_MANY; or a negative errno.
 */
int lookup_client(tl_client *client, const struct name_key *key, struct use *use, uint64_t *ref);
