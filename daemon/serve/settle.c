/* SPDX-License-Identifier: Apache-2.0 */
/* SETTLE; see settle.h. Tests use it instead of sleeping. Loop thread only. */
#include <stdlib.h>

#include "daemon/serve/settle.h"

enum { SETTLES_MAX = 64 }; /* of one client */

struct settle {
	struct list link; /* in settling->list */
	struct peer_wait wait;
	struct peer *peer;
	uint32_t serial;
	uint64_t round; /* settling->rounds when it came */
};

static void settle_free(struct settle *settle)
{
	list_del(&settle->link);
	list_del(&settle->wait.link);
	free(settle);
}

static void settle_gone(struct peer_wait *wait)
{
	settle_free(container_of(wait, struct settle, wait));
}

void settle_add(struct settling *settling, struct peer *peer, uint32_t serial)
{
	struct settle *settle;

	if (peer->settles >= SETTLES_MAX) {
		peer_error(peer, serial, WIRE_E_LIMIT, "this client waits for %d SETTLEs already",
			   SETTLES_MAX);
		return;
	}
	settle = malloc(sizeof(*settle));
	if (!settle) {
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "cannot remember SETTLE: the daemon is out of memory");
		return;
	}
	*settle = (struct settle){
		.wait.gone = settle_gone, .peer = peer, .serial = serial, .round = settling->rounds
	};
	list_add_tail(&settling->list, &settle->link);
	list_add_tail(&peer->waits, &settle->wait.link);
	peer->settles++;
}

bool settle_round(struct settling *settling)
{
	const struct settle *newest;
	bool fresh = false;

	if (!list_empty(&settling->list)) {
		newest = list_last_entry(&settling->list, struct settle, link);
		fresh = newest->round == settling->rounds;
	}
	settling->rounds++;
	return fresh;
}

bool settle_answer_one(struct settling *settling)
{
	struct wire_plain m = { .header = { .type = WIRE_DONE, .length = sizeof(m) } };
	struct settle *settle;
	struct peer *peer;

	if (list_empty(&settling->list))
		return false;
	settle = list_first_entry(&settling->list, struct settle, link);
	if (settle->round == settling->rounds)
		return false;
	peer = settle->peer;
	m.header.serial = settle->serial;
	settle_free(settle);
	peer->settles--;
	peer_send(peer, &m, -1); /* may drop it, and forget its others */
	return true;
}
