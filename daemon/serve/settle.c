/* SPDX-License-Identifier: Apache-2.0 */
/* Those who asked to be told when the daemon is idle. Tests use it in place of waiting. Loop thread
 * only. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/serve/settle.h"
#include "daemon/serve/space.h"

enum { SETTLES_MAX = 64 }; /* of one client */

struct settle {
	struct list link;
	struct peer *peer;
	uint32_t serial;
};

void settle_add(struct peer *peer, uint32_t serial)
{
	struct settle *settle;

	if (peer->settles >= SETTLES_MAX) {
		peer_error(peer, serial, WIRE_E_LIMIT, "this client waits for %d SETTLEs already",
			   SETTLES_MAX);
		return;
	}
	settle = malloc(sizeof(*settle));
	if (!settle) {
		peer_error(peer, serial, WIRE_E_NO_RESOURCES, "the daemon is out of memory");
		return;
	}
	*settle = (struct settle){ .peer = peer, .serial = serial };
	list_add_tail(&peer->server->settling, &settle->link);
	peer->settles++;
}

void settle_forget(struct peer *peer)
{
	struct settle *settle, *after;

	list_for_each_entry_safe(settle, after, &peer->server->settling, link) {
		if (settle->peer == peer) {
			list_del(&settle->link);
			free(settle);
		}
	}
}

void settle_answer(struct server *server)
{
	struct wire_plain m = { .header = { .type = WIRE_DONE, .length = sizeof(m) } };
	struct settle *settle;
	struct peer *peer;

	while (!space_busy(server) && !peers_unsettled(server) && !list_empty(&server->settling)) {
		settle = list_first_entry(&server->settling, struct settle, link);
		list_del(&settle->link);
		peer = settle->peer;
		m.header.serial = settle->serial;
		free(settle);
		peer->settles--;
		peer_send(peer, &m, -1); /* may drop it, and forget its others */
	}
}
