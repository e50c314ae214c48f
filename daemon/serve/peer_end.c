/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of connections; see peer.h. A dropped peer is in its account's list of ends while its
 * end has steps to do. It is in peers.to_check, or with a worker, while its ledger is to be
 * checked, and in peers.resting while it is an orphan between two checks. Loop thread only.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/serve/peer.h"
#include "daemon/state/client.h"
#include "util/log.h"

/* The time between two checks of orphans doubles. SYNC waits for orphans only at first. */
enum { ORPHAN_MS_FIRST = 4, ORPHAN_MS_SYNC = 128, ORPHAN_MS_MAX = 1024 };

/*
 * A worker checks whether any process has a ledger mapped, since the kernel waits for pinned pages.
 * At most one ledger of each user is checked at a time, and LOOKS_MAX in all, so that workers are
 * left for other jobs.
 */
enum { LOOKS_MAX = 2 };
enum { CLOSER_NOTE_MS = 2 }; /* to the next closer_note() while others are held back */
enum { ENDS_BUDGET = 64 };   /* looks at what an ended client has, between two looks at the clock */

/* ---- orphans -------------------------------------------------------------------------------- */

static void peers_on_timer(uv_timer_t *timer)
{
	struct peers *peers = container_of(timer, struct peers, orphan_timer);

	peers->orphan_ms = peers->orphan_ms * 2 < ORPHAN_MS_MAX ? peers->orphan_ms * 2
								: ORPHAN_MS_MAX;
	peers_look(peers);
}

/* Starts the timer for the next check of the remaining orphans. The ends of other connections do
 * not delay that. */
static void peers_rest(struct peers *peers)
{
	uv_timer_t *timer = &peers->orphan_timer;

	if (list_empty(&peers->resting))
		return;
	if (!uv_is_active((uv_handle_t *)timer) || uv_timer_get_due_in(timer) > peers->orphan_ms)
		uv_timer_start(timer, peers_on_timer, peers->orphan_ms, 0);
}

/* ---- ledgers -------------------------------------------------------------------------------- */

/* To be called when the ledger has been checked. */
static void peer_looked(struct peer *peer, bool mapped)
{
	client_looked(&peer->client, mapped);
	peer_end(peer);
}

static void looks_start(struct peers *peers);

static void look_work(uv_work_t *work)
{
	struct ledger_check *look = container_of(work, struct ledger_check, work);

	look->mapped = ledger_is_mapped(look->fd);
}

static void look_worked(uv_work_t *work, int status)
{
	struct ledger_check *look = container_of(work, struct ledger_check, work);
	struct peers *peers = look->peers;
	struct peer *peer = look->peer;

	peers->looking--;
	close(look->fd);
	if (peer) {
		peer->looked = NULL;
		peer->turn.account->checking--;
		peer_looked(peer, status ? true : look->mapped);
		looks_start(peers);
	}
	free(look);
}

/* Has a worker check the ledger, or checks it here and now if there is no memory or descriptor for
 * that. */
static void look_start(struct peer *peer)
{
	struct ledger_check *look = malloc(sizeof(*look));
	int fd = look ? fcntl(peer->client.ledger_fd, F_DUPFD_CLOEXEC, 0) : -1;

	list_del(&peer->look);
	client_unmap_ledger(&peer->client);
	if (fd >= 0) {
		*look = (struct ledger_check){ .peers = peer->peers, .peer = peer, .fd = fd };
		if (!uv_queue_work(peer->peers->loop, &look->work, look_work, look_worked)) {
			peer->looked = look;
			peer->turn.account->checking++;
			peer->peers->looking++;
			return;
		}
		close(fd);
	}
	free(look);
	peer_looked(peer, ledger_is_mapped(peer->client.ledger_fd));
}

static void looks_start(struct peers *peers)
{
	struct peer *peer, *after;

	list_for_each_entry_safe(peer, after, &peers->to_check, look) {
		if (peers->looking >= LOOKS_MAX)
			return;
		if (!peer->turn.account->checking)
			look_start(peer);
	}
	peers_rest(peers);
}

void peers_look(struct peers *peers)
{
	list_move_all(&peers->to_check, &peers->resting);
	looks_start(peers);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* To be called when all that the peer had is given back (@over), or when it is an orphan, a new or
 * an old one. */
static void peer_ended(struct peer *peer, bool over)
{
	struct peers *peers = peer->peers;

	log_debug("client ended", "client=%llu pid=%u orphan=%d",
		  (unsigned long long)peer->client.id, peer->client.pid, !over);
	if (peer->stage == PEER_ENDING || over) /* and not an orphan that stays one */
		peer->turn.account->ended_ns = now_mono_ns();
	if (peer->stage == PEER_ENDING) {
		peers->ending--;
		peer->turn.account->ending--;
		if (!over)
			peers->orphan_ms = ORPHAN_MS_FIRST;
	}
	peer_close_socket(peer); /* a client that waits for this finds everything given back */
	list_del(&peer->look);
	if (over) {
		peer_leave(peer);
	} else {
		peer->stage = PEER_ORPHAN;
		list_add_tail(&peers->resting, &peer->look);
		peers_rest(peers);
	}
}

static void peer_end_step(struct peer *peer)
{
	switch (client_end_step(&peer->client, peer->state, ENDS_BUDGET)) {
	case CLIENT_MORE:
		return;
	case CLIENT_LOOK:
		list_del(&peer->look);
		list_add_tail(&peer->peers->to_check, &peer->look);
		looks_start(peer->peers);
		return;
	case CLIENT_ORPHANED:
	case CLIENT_OVER:
		peer_ended(peer, peer->client.index == CATALOG_NONE);
		return;
	}
}

/* The connections of one user end one after the other. */
static bool peers_on_ends(void *context, struct account *account)
{
	struct peers *peers = context;

	while (!list_empty(&account->ends)) {
		peer_end_step(list_first_entry(&account->ends, struct peer, look));
		if (turn_is_over(peers->turns))
			break;
	}
	return !list_empty(&account->ends);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static void peers_on_closer(uv_timer_t *timer)
{
	struct peers *peers = container_of(timer, struct peers, closer_timer);
	struct closer *closer = &peers->common->closer;

	closer_note(closer);
	if (uv_now(timer->loop) - peers->closer_looked >= CLOSER_LOOK_MS) {
		closer_look(closer);
		peers->closer_looked = uv_now(timer->loop);
	}
	peers_arm(peers);
}

void peers_arm(struct peers *peers)
{
	const struct closer *closer = &peers->common->closer;
	uint64_t ms = closer_holds(closer) ? CLOSER_NOTE_MS : CLOSER_LOOK_MS;

	if (closer_looks(closer) && (!uv_is_active((uv_handle_t *)&peers->closer_timer) ||
				     uv_timer_get_due_in(&peers->closer_timer) > ms))
		uv_timer_start(&peers->closer_timer, peers_on_closer, ms, 0);
}

bool peers_busy(const struct peers *peers)
{
	return peers->ending || closer_waits(&peers->common->closer) ||
	       !list_empty(&peers->stalled) ||
	       (peers->orphans && peers->orphan_ms < ORPHAN_MS_SYNC);
}

void ends_init(struct peers *peers)
{
	turns_register(peers->turns, ACCOUNT_ENDS, peers_on_ends, peers);
}
