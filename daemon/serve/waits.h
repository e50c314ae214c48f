/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are answered later. */
#pragma once

#include "util/list.h"

struct peer_wait {
	struct list link; /* in peer.waits, or unlinked */
	/* Nobody waits any more. The request is not answered, and gives back what it has of its
	 * peer, which may be dropped already. */
	void (*end)(struct peer_wait *wait);
};

/* To be called when the peer is dropped, or its client is closed. */
static inline void waits_end(struct list *waits)
{
	struct peer_wait *wait;

	while (!list_empty(waits)) {
		wait = list_first_entry(waits, struct peer_wait, link);
		list_del(&wait->link);
		wait->end(wait);
	}
}
