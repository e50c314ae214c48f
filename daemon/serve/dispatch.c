/* SPDX-License-Identifier: Apache-2.0 */
/* Reads messages in turns, and calls their handlers. The table of messages is the protocol's front
 * door: it has the handler of each, and the stage in which the message may come. Loop thread
 * only. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/serve/greet.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"
#include "daemon/state/catalog.h"
#include "daemon/state/claim.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "tensor/name.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"

/* ---- the table ------------------------------------------------------------------------------ */

static const struct request {
	void (*handle)(struct peer *peer, struct conn_message *m);
	enum peer_stage stage; /* that the peer must be in */
	bool publishes;	       /* needs the right to publish in the namespace */
	bool unanswered; /* the client does not send it again after a restart, and it may be handled
			    twice */
} requests[WIRE_REQUEST_END] = {
	[WIRE_HELLO] = { handle_hello, PEER_NEW },
	[WIRE_LEDGER] = { handle_ledger, PEER_GREETED },
	[WIRE_HOLD] = { handle_hold, PEER_GREETED },
	[WIRE_CREATE] = { handle_create, PEER_READY, true },
	[WIRE_COMMIT] = { handle_commit, PEER_READY, true },
	[WIRE_ABORT] = { handle_abort, PEER_READY, .unanswered = true },
	[WIRE_MAP] = { handle_map, PEER_READY },
	[WIRE_DELETE] = { handle_delete, PEER_READY, true },
	[WIRE_RELEASED] = { handle_released, PEER_READY, .unanswered = true },
	[WIRE_LINK] = { handle_link, PEER_READY, true },
	[WIRE_CLIENTS] = { handle_clients, PEER_READY },
	[WIRE_HOLDINGS] = { handle_holdings, PEER_READY },
	[WIRE_SYNC] = { handle_sync, PEER_READY },
	[WIRE_MEMBER] = { handle_member, PEER_READY, true },
	[WIRE_MEMBERS] = { handle_members, PEER_READY, true },
	[WIRE_GROUP] = { handle_group, PEER_READY, true },
	[WIRE_EXPORT] = { handle_export, PEER_READY, true },
	[WIRE_KEEP] = { handle_keep, PEER_READY },
	[WIRE_PART] = { handle_part, PEER_READY },
	[WIRE_UNEXPORT] = { handle_unexport, PEER_READY },
	[WIRE_IMPORT] = { handle_import, PEER_READY },
	[WIRE_UNMAPPED] = { handle_unmapped, PEER_READY, .unanswered = true },
	[WIRE_PLACE] = { handle_place, PEER_READY, true },
	[WIRE_FINISHED] = { handle_finished, PEER_READY },
	[WIRE_USERS] = { handle_users, PEER_READY },
	[WIRE_DEVICES] = { handle_devices, PEER_READY },
	[WIRE_CLAIM] = { handle_claim, PEER_READY, true },
	[WIRE_UNCLAIM] = { handle_unclaim, PEER_READY, .unanswered = true },
	[WIRE_RESUMED] = { handle_resumed, PEER_READY },
	[WIRE_KICK] = { handle_kick, PEER_READY },
	[WIRE_RING] = { handle_ring, PEER_READY, true },
	[WIRE_RETIRE] = { handle_retire, PEER_READY, .unanswered = true },
	[WIRE_PAGE] = { handle_page, PEER_READY },
	[WIRE_SLEEP] = { handle_sleep, PEER_READY },
	[WIRE_WATCH] = { handle_watch, PEER_READY },
	[WIRE_UNWATCH] = { handle_unwatch, PEER_READY, .unanswered = true },
	[WIRE_OPEN] = { handle_open, PEER_READY, true },
	[WIRE_LEAVE] = { handle_leave, PEER_READY },
	[WIRE_ROWS] = { handle_rows, PEER_READY, true },
	[WIRE_POSITIONS] = { handle_positions, PEER_READY },
	[WIRE_STREAMS] = { handle_streams, PEER_READY },
	[WIRE_STREAM_MEMBERS] = { handle_stream_members, PEER_READY },
	[WIRE_METRICS] = { handle_metrics, PEER_READY },
	[WIRE_READERS] = { handle_readers, PEER_READY },
	[WIRE_HANDOVER] = { handle_handover, PEER_READY },
	[WIRE_RECEIVE] = { handle_receive, PEER_READY },
	[WIRE_UNBIND] = { handle_unbind, PEER_READY, .unanswered = true },
	[WIRE_RESTART] = { handle_restart, PEER_READY },
};

bool peer_is_unanswered(const struct conn_message *m)
{
	return requests[m->header.type].unanswered;
}

static void send_read_only(struct peer *peer, uint32_t serial)
{
	peer_error(peer, serial, WIRE_E_DENIED,
		   "user %u may get from the namespace '%s', and not publish there",
		   peer->client.uid, peer->name_space->config.name);
}

/* True if a former daemon has published what the message asks for, and could not say so before its
 * end. A client asks for the members of its group again before it asks for the group. */
static bool was_published(struct peer *peer, const struct conn_message *m)
{
	uint64_t version, ref;

	switch (m->header.type) {
	case WIRE_COMMIT:
		ref = AS(wire_commit, m)->ref;
		break;
	case WIRE_RING:
		ref = AS(wire_ring, m)->ref;
		break;
	case WIRE_MEMBER:
		ref = AS(wire_member, m)->ref;
		break;
	case WIRE_MEMBERS:
		ref = AS(wire_members, m)->ref;
		break;
	case WIRE_GROUP:
		ref = AS(wire_group, m)->ref;
		break;
	default:
		return false;
	}
	if (peer->origin == PEER_OURS)
		return false;
	if (m->header.type == WIRE_COMMIT || m->header.type == WIRE_RING)
		return tensor_was_committed(peer->state, &peer->client, ref, &version);
	return group_was_published(peer->state, &peer->client, ref);
}

static void refuse_commit(struct peer *peer, const struct wire_commit *commit)
{
	if (!(commit->flags & WIRE_COMMIT_KEEP))
		tensor_abort(peer->state, &peer->client, commit->ref);
	if (commit->flags & WIRE_COMMIT_PREFETCH)
		send_read_only(peer, commit->prefetch_serial);
}

static void tell_retyped(struct peer *peer)
{
	struct state *st = peer->state;
	char name[TENSOR_NAME_MAX + 1];

	st->retyped_due = false;
	name[name_text(&st->names, (uint32_t)st->catalog.header->retyped_name, name)] = '\0';
	log_warn_limited(peer->turn.account->log,
			 "a name got another type or shape than another program had given it",
			 "name=%s client=%llu pid=%u uid=%u program=%s", log_str(name),
			 (unsigned long long)peer->client.id, peer->client.pid, peer->client.uid,
			 log_str(peer->client.label));
}

void peer_dispatch(struct peer *peer, struct conn_message *m)
{
	const struct request *request = &requests[m->header.type];

	if (!request->handle || request->stage != peer->stage) {
		log_warn_limited(peer->turn.account->log, "client dropped: message out of order",
				 "client=%llu pid=%u uid=%u type=%s",
				 (unsigned long long)peer->client.id, peer->client.pid,
				 peer->client.uid, wire_type_name(m->header.type));
		peer_error(peer, m->header.serial, WIRE_E_PROTOCOL, "%s is out of order",
			   wire_type_name(m->header.type));
		peer_drop(peer);
		return;
	}
	if (peer_is_of_old_life(peer, &m->header) && !peer_is_unanswered(m))
		return; /* its client sends it again */
	if (request->publishes && !peer->may_publish && !was_published(peer, m)) {
		send_read_only(peer, m->header.serial);
		if (m->header.type == WIRE_COMMIT)
			refuse_commit(peer, AS(wire_commit, m));
		return;
	}
	request->handle(peer, m);
	if (peer->state->retyped_due)
		tell_retyped(peer);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void peer_refuse(struct peer *peer, const struct conn_message *m)
{
	log_warn_limited(peer->turn.account->log, "client dropped: bad message",
			 "client=%llu pid=%u uid=%u why=%s", (unsigned long long)peer->client.id,
			 peer->client.pid, peer->client.uid, log_str(m->why));
	peer_error(peer, 0, WIRE_E_PROTOCOL, "%s", m->why);
	peer_drop(peer);
}

/* To be called when all messages of the peer have been read. If its client could not send some
 * RELEASED, the ledger says so (docs/protocol/leases.md, Release). */
static void peer_drained(struct peer *peer)
{
	const struct ledger *ledger = peer->client.ledger;
	uint32_t rescan = ledger ? atomic_load(&((struct ledger *)ledger)->rescan) : 0;

	if (rescan == peer->rescan)
		return;
	peer->rescan = rescan;
	lease_rescan(peer->state, &peer->client);
}

/* Does the next step of a request. One that stays in the socket counts as handled after its last
 * step. */
static void step(struct peer *peer)
{
	peer->listing.step(peer);
	if (!peer->listing.unread || peer->listing.step || peer_is_dropped(peer))
		return;
	peer->listing.unread = false;
	conn_consume(peer->fd);
}

bool receive_turn(struct peer *peer)
{
	struct conn_message m;
	struct conn_fds refused;
	bool stays;
	int r = 0;

	if (peer->turn.account->closing) { /* the user's earlier descriptors are closed first */
		peer_stall(peer);
		return false;
	}
	for (unsigned n = 0; n < TURN_MESSAGES && !(n && turn_is_over(peer->peers->turns)); n++) {
		bool listing = peer->listing.step;

		/* a group keeps others waiting until it is published, so it goes on; its answer
		 * comes after */
		if (peer_is_owed(peer) &&
		    (listing || !group_goes_on(&peer->client) || !peer->group_asked))
			return false;
		if (listing || group_goes_on(&peer->client)) {
			if (listing)
				step(peer);
			else
				peer_group_step(peer);
			if (peer_is_dropped(peer))
				return false;
			continue;
		}
		r = conn_receive_all(peer->fd, WIRE_TO_DAEMON, &m, MSG_DONTWAIT | MSG_PEEK,
				     &refused);
		/* a message that is not sent again stays in the socket until it was handled */
		stays = peer->kept && !r && m.fd < 0 && peer_is_unanswered(&m);
		/* and so does one whose descriptors we do not all have: consuming it would close
		 * them here */
		if ((!r || (r == -EBADMSG && !m.fd_lost)) && !stays)
			conn_consume(peer->fd);
		for (unsigned i = 0; i < refused.n; i++)
			peer_close(peer, refused.fds[i]);
		if (r)
			break;
		peer_dispatch(peer, &m);
		peer->listing.unread = stays && peer->listing.step;
		if (stays && !peer->listing.unread)
			conn_consume(peer->fd);
		peer_close(peer, m.fd); /* unless the handler took it */
		if (peer_is_dropped(peer))
			return false;
	}
	if (r == -EBADMSG) {
		peer_refuse(peer, &m);
		return false;
	}
	if (r && r != -EAGAIN && r != -ENOMEM && r != -ENOBUFS) {
		peer_drop(peer);
		return false;
	}
	/* Without -EAGAIN the socket may be empty nevertheless. One look too many is harmless. */
	peer_drained(peer);
	if (r == -EAGAIN)
		peer->readable = false;
	else if (r)
		peer_stall(peer);
	return !r;
}
