/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a peer's socket in turns. Loop thread only. */
#include <errno.h>
#include <sys/socket.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/receive.h"
#include "daemon/state/group.h"
#include "daemon/state/lease.h"
#include "daemon/state/tensor.h"
#include "util/fd.h"
#include "util/log.h"

static void peer_refuse(struct peer *peer, const struct conn_message *m)
{
	log_warn_limited(peer->turn.account->log, "client dropped: bad message",
			 "client=%llu pid=%u uid=%u why=%s", (unsigned long long)peer->client.id,
			 peer->client.pid, peer->client.uid, log_str(m->why));
	peer_error(peer, 0, WIRE_E_PROTOCOL, "%s", m->why);
	peer_drop(peer);
}

/* All messages of the peer have been read. If it could not send some RELEASED, its ledger says so
 * (PROTOCOL.md section 5). */
static void peer_drained(struct peer *peer)
{
	const struct ledger *ledger = peer->client.ledger;
	uint32_t rescan = ledger ? atomic_load(&((struct ledger *)ledger)->rescan) : 0;

	if (rescan == peer->rescan)
		return;
	peer->rescan = rescan;
	lease_rescan(peer->state, &peer->client);
}

/* The next step of a request, which is not handled before the last one. */
static void step(struct peer *peer)
{
	peer->listing.step(peer);
	if (!peer->listing.unread || peer->listing.step || peer->dropping)
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

	if (peer->turn.account->closing) { /* its earlier descriptors come first */
		peer_stall(peer);
		return false;
	}
	for (unsigned n = 0; n < TURN_MESSAGES && !(n && turn_is_over(peer->peers->turns)); n++) {
		bool listing = peer->listing.step;

		/* until a group is published it has what others wait for; its answer comes after */
		if (peer_is_owed(peer) &&
		    (listing || !group_goes_on(&peer->client) || !peer->group_asked))
			return false;
		if (listing || group_goes_on(&peer->client)) {
			if (listing)
				step(peer);
			else
				peer_group_step(peer);
			if (peer->dropping)
				return false;
			continue;
		}
		r = conn_receive_all(peer->fd, WIRE_TO_DAEMON, &m, MSG_DONTWAIT | MSG_PEEK,
				     &refused);
		/* a message that is not sent again stays in the socket until it was handled */
		stays = peer->kept && !r && m.fd < 0 && peer_is_unanswered(&m);
		/* and one whose descriptors we have not all: to consume it would close them here */
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
		if (peer->dropping)
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
