/* SPDX-License-Identifier: Apache-2.0 */
/* SYNC; see server.h. Tests use it instead of sleeping. Loop thread only. */
#include <stdlib.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"

enum { SYNCS_MAX = 64 }; /* of one client */

struct sync {
	struct list link; /* in syncs->list */
	struct peer_wait wait;
	struct peer *peer;
	uint32_t serial;
	uint64_t round; /* syncs->rounds when it came */
};

static void sync_free(struct sync *sync)
{
	list_del(&sync->link);
	list_del(&sync->wait.link);
	free(sync);
}

static void sync_end(struct peer_wait *wait)
{
	struct sync *sync = container_of(wait, struct sync, wait);

	sync->peer->syncs--;
	sync_free(sync);
}

void sync_add(struct syncs *syncs, struct peer *peer, uint32_t serial)
{
	struct sync *sync;

	if (peer->syncs >= SYNCS_MAX) {
		peer_error(peer, serial, WIRE_E_LIMIT, "this client waits for %d SYNCs already",
			   SYNCS_MAX);
		return;
	}
	sync = malloc(sizeof(*sync));
	if (!sync) {
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "cannot remember SYNC: the daemon is out of memory");
		return;
	}
	*sync = (struct sync){
		.wait.end = sync_end, .peer = peer, .serial = serial, .round = syncs->rounds
	};
	list_add_tail(&syncs->list, &sync->link);
	list_add_tail(&peer->waits, &sync->wait.link);
	peer->syncs++;
}

bool sync_round(struct syncs *syncs)
{
	const struct sync *newest;
	bool fresh = false;

	if (!list_empty(&syncs->list)) {
		newest = list_last_entry(&syncs->list, struct sync, link);
		fresh = newest->round == syncs->rounds;
	}
	syncs->rounds++;
	return fresh;
}

bool sync_answer_one(struct syncs *syncs)
{
	struct wire_plain m = { .header = { .type = WIRE_DONE, .length = sizeof(m) } };
	struct sync *sync;
	struct peer *peer;

	if (list_empty(&syncs->list))
		return false;
	sync = list_first_entry(&syncs->list, struct sync, link);
	if (sync->round == syncs->rounds)
		return false;
	peer = sync->peer;
	m.header.serial = sync->serial;
	sync_free(sync);
	peer->syncs--;
	peer_send(peer, &m, -1); /* may drop the peer, and its other SYNCs */
	return true;
}

void handle_sync(struct peer *peer, struct conn_message *m)
{
	sync_add(&server_of(peer)->syncs, peer, m->header.serial);
}
