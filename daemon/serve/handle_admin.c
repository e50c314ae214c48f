/* SPDX-License-Identifier: Apache-2.0 */
/* Administrators' requests: ending other connections, and restarting the daemon. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/serve/admin.h"
#include "daemon/serve/listing.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"
#include "util/log.h"

enum { ANYBODY = UINT32_MAX };

/* The policy: @peer may end connections of @uid. */
static bool may_kick(const struct peer *peer, uint32_t uid)
{
	uint32_t me = peer->client.uid;

	return me == 0 || me == peer->peers->shared->uid || me == uid;
}

static void send_denied(struct peer *peer, uint32_t serial, uint32_t uid)
{
	peer_error(
		peer, serial, WIRE_E_DENIED,
		"user %u may not disconnect clients of user %u: root, user %u (the daemon's) and "
		"user %u may",
		peer->client.uid, uid, peer->peers->shared->uid, uid);
}

/* True if KICK is about that client. Of the others in other namespaces nobody learns. */
static bool is_meant(const struct peer *peer, const struct peer *other)
{
	const struct listing *listing = &peer->listing;

	return other != peer && !other->dropping &&
	       (listing->uid == ANYBODY || other->client.uid == listing->uid) &&
	       (other->name_space == peer->name_space || may_kick(peer, other->client.uid));
}

static void kick(struct peer *peer, struct peer *other, uint32_t serial)
{
	struct wire_kicked answer = {
		.header = { .type = WIRE_KICKED, .length = sizeof(answer), .serial = serial },
		.id = other->client.id,
		.newest = peer->peers->shared->next_client_id,
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
	uint32_t me = peer->client.uid, own = peer->peers->shared->uid;
	struct server *server = server_of(peer);
	char why[SERVER_WHY_MAX];

	if (me != 0 && me != own) {
		peer_error(
			peer, request->header.serial, WIRE_E_DENIED,
			"user %u may not restart the daemon: root and user %u (the daemon's) may",
			me, own);
		return;
	}
	if (!server->keep->here) {
		peer_error(
			peer, request->header.serial, WIRE_E_NOT_FOUND,
			"nobody would start another daemon: this one has no keeper (--keeper no, or it was killed)");
		return;
	}
	if (!keep_has_program(server->keep)) {
		peer_error(peer, request->header.serial, WIRE_E_NOT_FOUND,
			   "no other daemon starts: its program %s is not there: %s",
			   server->keep->program, strerror(errno));
		return;
	}
	if (server->may_leave && !server->may_leave(server->context, NULL, why)) {
		peer_error(peer, request->header.serial, WIRE_E_INVALID,
			   "no other daemon starts: %s", why);
		return;
	}
	if (request->restarts == server->keep->restarts) {
		snprintf(why, sizeof(why), "asked for by user %u", me);
		keep_renew(server->keep, why);
	}
	send_done(peer, request->header.serial);
}
