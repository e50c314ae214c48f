/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for administrators: CLIENTS, HOLDINGS, READERS, USERS, KICK, RESTART. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"
#include "daemon/state/ring.h"
#include "util/log.h"

enum { ANYBODY = UINT32_MAX };

/* The policy: true if @peer may end connections of @uid. */
static bool may_kick(const struct peer *peer, uint32_t uid)
{
	uint32_t me = peer->client.uid;

	return me == 0 || me == peer->peers->common->uid || me == uid;
}

static void send_denied(struct peer *peer, uint32_t serial, uint32_t uid)
{
	peer_error(
		peer, serial, WIRE_E_DENIED,
		"user %u may not disconnect clients of user %u: root, user %u (the daemon's) and "
		"user %u may",
		peer->client.uid, uid, peer->peers->common->uid, uid);
}

/* True if the KICK of @peer is about @other. Nobody learns of clients in other namespaces that they
 * may not end. */
static bool is_meant(const struct peer *peer, const struct peer *other)
{
	const struct listing *listing = &peer->listing;

	return other != peer && !peer_is_dropped(other) &&
	       (listing->uid == ANYBODY || other->client.uid == listing->uid) &&
	       (other->name_space == peer->name_space || may_kick(peer, other->client.uid));
}

static void kick(struct peer *peer, struct peer *other, uint32_t serial)
{
	struct wire_kicked answer = {
		.header = { .type = WIRE_KICKED, .length = sizeof(answer), .serial = serial },
		.id = other->client.id,
		.newest = peer->peers->common->next_client_id,
		.uid = other->client.uid
	};

	if (peer->turn.account->privileged || log_limit_pass(peer->turn.account->log))
		log_info("client disconnected on demand",
			 "client=%llu pid=%u uid=%u by_client=%llu by_uid=%u",
			 (unsigned long long)answer.id, other->client.pid, other->client.uid,
			 (unsigned long long)peer->client.id, peer->client.uid);
	peer_hurry(other);
	peer_error(other, 0, WIRE_E_KICKED,
		   "user %u has disconnected this client (tensorlease kick); close it and connect "
		   "again to go on",
		   peer->client.uid);
	peer_drop(other);
	peer_send(peer, &answer, -1);
}

static void kick_step(struct peer *peer)
{
	bool more = false;
	struct peer *other = listing_next(peer, is_meant, &more);

	if (peer->listing.id >= peer->listing.until)
		more = false;
	if (peer->listing.id > peer->listing.until)
		other = NULL;
	if (other && !may_kick(peer, other->client.uid))
		send_denied(peer, listing_end(peer), other->client.uid);
	else if (other)
		kick(peer, other, listing_end(peer));
	else if (!more)
		send_done(peer, listing_end(peer));
}

void handle_kick(struct peer *peer, struct conn_message *m)
{
	const struct wire_kick *request = AS(wire_kick, m);

	if (request->uid != ANYBODY && !may_kick(peer, request->uid)) {
		send_denied(peer, request->header.serial, request->uid);
		return;
	}
	listing_begin(peer, request->header.serial, request->after, kick_step);
	peer->listing.uid = request->uid;
	peer->listing.until = request->until;
}

void handle_restart(struct peer *peer, struct conn_message *m)
{
	const struct wire_restart *request = AS(wire_restart, m);
	uint32_t me = peer->client.uid, own = peer->peers->common->uid;
	struct server *server = server_of(peer);
	char why[SERVER_WHY_MAX];

	if (me != 0 && me != own) {
		peer_error(
			peer, request->header.serial, WIRE_E_DENIED,
			"user %u may not restart the daemon: root and user %u (the daemon's) may",
			me, own);
		return;
	}
	if (!server->keeper->here) {
		peer_error(
			peer, request->header.serial, WIRE_E_NOT_FOUND,
			"nobody would start another daemon: this one has no keeper (--keeper no, or it was killed)");
		return;
	}
	if (!keeper_link_has_program(server->keeper)) {
		peer_error(peer, request->header.serial, WIRE_E_NOT_FOUND,
			   "no other daemon starts: its program %s is not there: %s",
			   server->keeper->program, strerror(errno));
		return;
	}
	if (server->may_leave && !server->may_leave(server->context, NULL, why)) {
		peer_error(peer, request->header.serial, WIRE_E_INVALID,
			   "no other daemon starts: %s", why);
		return;
	}
	if (request->restarts == server->keeper->restarts) {
		snprintf(why, sizeof(why), "asked for by user %u", me);
		keeper_link_renew(server->keeper, why);
	}
	send_done(peer, request->header.serial);
}

/* CLIENTS and HOLDINGS are answered in steps; see reply.h. The current client may end between two
 * steps, so each step finds it again by its id, which is never reused. */

/* Clients of other namespaces are invisible. So are connections that have ended while we do not
 * know whether they are, or still are, orphans: nothing reads their ledgers then. */
static bool is_visible(const struct peer *peer, const struct peer *other)
{
	return other->name_space == peer->name_space && other->stage != PEER_ENDING &&
	       !other->looked;
}

/* ---- clients -------------------------------------------------------------------------------- */

static void send_client(struct peer *peer, uint32_t serial, const struct client *c,
			const struct client_sums *sums)
{
	const struct catalog *catalog = &peer->state->catalog;
	struct wire_client answer = {
		.header = { .type = WIRE_CLIENT, .length = sizeof(answer), .serial = serial }
	};

	answer.id = c->id;
	answer.pid = c->pid;
	answer.uid = c->uid;
	answer.gid = c->gid;
	answer.drafts = c->drafts;
	answer.leases = sums->leases;
	answer.tensors_held = sums->tensors;
	answer.bytes_held = sums->bytes;
	memcpy(answer.label, c->label, sizeof(answer.label));
	answer.since_ns = catalog->identities[c->index].since_ns;
	peer_send(peer, &answer, -1);
}

/* One step of CLIENTS. If the current client has ended, the next one is taken. */
static void clients_step(struct peer *peer)
{
	struct listing *listing = &peer->listing;
	const struct peer *other = NULL;
	bool more;

	if (listing->sums.slot)
		other = index_find(&peer->peers->index, listing->id);
	if (!other || !is_visible(peer, other)) {
		listing->sums = (struct client_sums){ 0 };
		other = listing_next(peer, is_visible, &more);
		if (!other && !more)
			send_done(peer, listing_end(peer));
		if (!other)
			return;
	}
	if (!client_sum(&other->client, peer->state, &listing->sums, LISTING_BUDGET))
		send_client(peer, listing_end(peer), &other->client, &listing->sums);
}

void handle_clients(struct peer *peer, struct conn_message *m)
{
	const struct wire_clients *request = AS(wire_clients, m);

	listing_begin(peer, request->header.serial, request->after, clients_step);
}

/* ---- their holdings ------------------------------------------------------------------------- */

static void send_holding(struct peer *peer, uint32_t serial, uint32_t slot, uint32_t leases)
{
	struct {
		struct wire_holding holding;
		char name[TENSOR_NAME_MAX + 1];
	} m = { .holding = { .header = { .type = WIRE_HOLDING, .serial = serial },
			     .slot = slot,
			     .leases = leases } };
	const struct state *st = peer->state;
	const struct catalog_row *row = catalog_row(&st->catalog, slot);

	/* that of a stream's row is for its producer only */
	m.holding.version = row_is_of_stream(row) ? 0 : ring_row_version(st, slot);
	m.holding.nbytes = row->nbytes;
	m.holding.retired = row_word_state(row->word) == ROW_RETIRED;
	m.holding.name_len = name_text(&st->names, row->name, m.name);
	m.holding.header.length = (uint32_t)sizeof(m.holding) + m.holding.name_len;
	peer_send(peer, &m, -1);
}

static void holdings_step(struct peer *peer)
{
	struct listing *listing = &peer->listing;
	const struct peer *other = index_find(&peer->peers->index, listing->id);
	unsigned budget = LISTING_BUDGET;
	uint32_t leases;

	if (!other || !is_visible(peer, other))
		peer_error(peer, listing_end(peer), WIRE_E_NOT_FOUND, "there is no client %llu",
			   (unsigned long long)listing->id);
	else if (client_next_held(&other->client, peer->state, &listing->sums.slot, &budget,
				  &leases))
		send_holding(peer, listing_end(peer), listing->sums.slot, leases);
	else if (budget)
		send_done(peer, listing_end(peer));
}

void handle_holdings(struct peer *peer, struct conn_message *m)
{
	const struct wire_holdings *request = AS(wire_holdings, m);

	listing_begin(peer, request->header.serial, request->id, holdings_step);
	peer->listing.sums.slot = request->slot;
}

/* ---- who reads what -------------------------------------------------------------------------- */

/* A ring's producer holds the row that it writes next; it does not read that. */
static bool is_reader(const struct state *st, const struct client *c, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);

	return !row_is_of_stream(row) &&
	       !(row->flags & ROW_RING && catalog_name(&st->catalog, row->name)->producer ==
						  catalog_producer(c->index, c->generation));
}

/* Adds what @c holds to @answer, until that is full or *@budget looks are used up. True: that is
 * all that it holds. */
static bool add_held(struct peer *peer, const struct client *c, struct wire_held *answer,
		     unsigned *budget)
{
	uint32_t *slot = &peer->listing.sums.slot, leases;

	while (answer->count < WIRE_HELD_MAX &&
	       client_next_held(c, peer->state, slot, budget, &leases)) {
		if (is_reader(peer->state, c, *slot)) {
			answer->clients[answer->count] = catalog_producer(c->index, c->generation);
			answer->names[answer->count] = catalog_row(&peer->state->catalog, *slot)
							       ->name;
			answer->leases[answer->count++] = leases;
		}
		++*slot;
	}
	return answer->count < WIRE_HELD_MAX && *budget;
}

/* One step of READERS. What it finds is sent at once, so that nothing is kept between steps. */
static void readers_step(struct peer *peer)
{
	struct wire_held answer = { .header = { .type = WIRE_HELD, .length = sizeof(answer) } };
	struct listing *listing = &peer->listing;
	const struct peer *other = index_find(&peer->peers->index, listing->id);
	unsigned budget = LISTING_BUDGET;
	bool more = true;

	while (!other || !is_visible(peer, other) ||
	       add_held(peer, &other->client, &answer, &budget)) {
		listing->sums.slot = UINT32_MAX; /* all of this one, if there is no other */
		other = listing_next(peer, is_visible, &more);
		if (!other)
			break;
		listing->sums.slot = 0;
		more = true;
		if (!--budget)
			break;
	}
	if (!answer.count && more)
		return;
	answer.header.serial = listing_end(peer);
	answer.id = listing->id;
	answer.slot = listing->sums.slot;
	if (answer.count)
		peer_send(peer, &answer, -1);
	else
		send_done(peer, answer.header.serial);
}

void handle_readers(struct peer *peer, struct conn_message *m)
{
	const struct wire_readers *request = AS(wire_readers, m);

	listing_begin(peer, request->header.serial, request->id, readers_step);
	peer->listing.sums.slot = request->slot;
}

/* USERS: a user sees itself, and what all users together have in its namespace; root and our own
 * user see all. */

static_assert((int)WIRE_SHARES == (int)SHARE_KINDS, "the protocol has a number for each");
static_assert((int)WIRE_DEVICES_MAX == (int)DEVICES_MAX, "clients know how many there can be");

static bool sees_all(const struct peer *peer)
{
	return peer->client.uid == 0 || peer->client.uid == peer->state->common->uid;
}

/* The pool that counts for the user. Of bytes it is the tighter one if the user is the peer's own,
 * and otherwise the daemon's, since other users may be in other namespaces. Of devices it is the
 * one that the user uses most. */
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
		if (!pool->accounts) { /* no client has named a device for this entry */
			m.max[share] = m.capacity[share] = peer->state->common->devices.capacity;
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
	const struct common *sh = peer->state->common;
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
