/* SPDX-License-Identifier: Apache-2.0 */
/* USERS: a user sees itself, and what all have in its namespace; root and our own user see all. */
#include <errno.h>
#include <string.h>

#include "daemon/serve/reply.h"
#include "daemon/serve/users.h"

static_assert((int)WIRE_SHARES == (int)SHARE_KINDS, "the protocol has a number for each");
static_assert((int)WIRE_DEVICES_MAX == (int)DEVICES_MAX, "clients know how many there can be");

static bool sees_all(const struct peer *peer)
{
	return peer->client.uid == 0 || peer->client.uid == peer->state->shared->uid;
}

/* The pool that counts for the user: of bytes the tighter one for the peer's own, and the daemon's
 * for others, who may be in other namespaces; of devices the one that the user uses most. */
static const struct pool *pool_for(struct peer *peer, struct account *account, enum share share)
{
	const struct account *top = account_top(account);
	struct state *st = peer->state;
	unsigned most = 0;

	if (share == SHARE_BYTES && account->uid != peer->client.uid)
		return state_pool(st, share)->above;
	if (share < SHARE_DEVICE)
		return account_tightest(account, state_pool(st, share));
	for (unsigned i = 1; i < DEVICES_MAX; i++) {
		if (top->used[SHARE_DEVICE + i] > top->used[SHARE_DEVICE + most])
			most = i;
	}
	return state_pool(st, SHARE_DEVICE + most);
}

static void send_user(struct peer *peer, uint32_t serial, struct account *account)
{
	struct wire_user m = {
		.header = { .type = WIRE_USER, .length = sizeof(m), .serial = serial },
		.busy_ns = account_top(account)->busy_ns,
		.uid = account->uid
	};

	for (unsigned share = 0; share < WIRE_SHARES; share++) {
		const struct pool *pool = pool_for(peer, account, share);
		bool others = pool->accounts != &peer->state->accounts; /* of all namespaces */

		m.used_by_all[share] = others && !sees_all(peer) ? UINT64_MAX : pool->used;
		if (!pool->accounts) { /* no device has been heard of in its place */
			m.max[share] = m.capacity[share] = peer->state->shared->devices.capacity;
			continue;
		}
		m.used[share] = account_used(account, pool);
		m.max[share] = account_max(account, pool);
		m.capacity[share] = pool->capacity;
	}
	peer_send(peer, &m, -1);
}

/* The next uid from @from on that @peer may see. False: there is none. */
static bool next_visible(const struct peer *peer, uint64_t from, bool exact, uint32_t *uid)
{
	const struct shared *sh = peer->state->shared;
	const struct account *account;

	if (exact && from == UINT32_MAX)
		from = peer->client.uid;
	if (!sees_all(peer)) {
		*uid = peer->client.uid;
		return exact ? from == *uid : from <= *uid;
	}
	account = exact || from > UINT32_MAX ? NULL : account_next(&sh->accounts, (uint32_t)from);
	*uid = account ? account->uid : (uint32_t)from;
	return account || (exact && from <= UINT32_MAX);
}

void handle_users(struct peer *peer, struct conn_message *m)
{
	const struct wire_users *request = AS(wire_users, m);
	uint32_t serial = request->header.serial, uid;
	struct account *account;

	if (!next_visible(peer, request->from, request->flags & WIRE_USERS_EXACT, &uid)) {
		send_done(peer, serial);
		return;
	}
	account = account_ref(&peer->state->accounts, uid);
	if (account)
		send_user(peer, serial, account);
	else
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "cannot look at user %u: the daemon is out of memory", uid);
	account_unref(account);
}
