/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a peer's socket, at most PEER_BATCH messages a turn, so that no peer starves the others.
 * Loop thread only. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "daemon/serve/dispatch.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/receive.h"
#include "daemon/state/lease.h"
#include "daemon/state/tensor.h"
#include "util/fd.h"
#include "util/log.h"

enum { PEER_BATCH = 64 };

static void peer_refuse(struct peer *peer, const struct conn_message *m)
{
	log_warn("client dropped: bad message", "client=%llu pid=%u uid=%u why=%s",
		 (unsigned long long)peer->client.id, peer->client.pid, peer->client.uid,
		 log_str(m->why));
	peer_error(peer, 0, WIRE_E_PROTOCOL, "%s", m->why);
	peer_drop(peer);
}

/* All messages of the peer have been read. If it could not send some RELEASED, its ledger says so
 * (PROTOCOL.md section 5). */
static void peer_drained(struct peer *peer)
{
	const struct ledger *ledger = peer->client.ledger;
	uint32_t rescan = ledger ? atomic_load(&((struct ledger *)ledger)->rescan) : 0;

	tensor_messages_read(peer->peers->state, &peer->client);
	if (rescan == peer->rescan)
		return;
	peer->rescan = rescan;
	lease_rescan(peer->peers->state);
}

/* Is there a message, or the end, for which the loop will come back? */
static bool peer_is_readable(const struct peer *peer)
{
	struct pollfd p = { .fd = peer->fd, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

static void peer_read(struct peer *peer)
{
	struct conn_message m;
	int r;

	peer_set_behind(peer, false);
	for (unsigned n = 0; n < PEER_BATCH && !peer->dropping; n++) {
		r = conn_receive(peer->fd, WIRE_TO_DAEMON, &m, MSG_DONTWAIT);
		if (r == -EAGAIN) {
			peer_drained(peer);
			return;
		}
		if (r == -EBADMSG) {
			peer_refuse(peer, &m);
			return;
		}
		if (r) {
			peer_drop(peer);
			return;
		}
		peer_dispatch(peer, &m);
		fd_close(m.fd); /* unless the handler took it */
	}
	if (peer->dropping)
		return;
	/* That may have been all, and nothing would tell us. Looking once too often is harmless. */
	peer_drained(peer);
	peer_set_behind(peer, peer_is_readable(peer));
}

void receive_on_poll(uv_poll_t *poll, int status, int events)
{
	struct peer *peer = container_of(poll, struct peer, poll);

	if (events & UV_WRITABLE)
		peer_flush(peer);
	/* After an error libuv stops polling. It is the end, which comes after what the peer sent.
	 */
	if (!peer->dropping && (status < 0 || events & UV_READABLE))
		peer_read(peer);
	if (!peer->dropping && status < 0)
		peer_poll(peer);
}
