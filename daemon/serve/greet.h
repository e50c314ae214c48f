/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections until they are READY. Each counts in the shares of its user from the start, and takes
 * a place in a namespace when HELLO has said which. A user at its limit may have closed connections
 * whose ends we are not done with. Then the new one waits for those.
 */
#pragma once

#include "daemon/serve/peer.h"

struct greeting {
	struct peers *peers;
	struct list list;    /* of struct peer, by greet: not READY yet, oldest first */
	struct list waiting; /* of struct newcomer: no peers yet, oldest first */
	unsigned newcomers;  /* how many wait */
	int64_t time_ns;     /* how long that may take */
	uv_timer_t timer;
};

void greeting_init(struct greeting *greeting, struct peers *peers, uv_loop_t *loop,
		   int64_t time_ns);
void greeting_stop(struct greeting *greeting);

/* Makes a peer of a new connection, now or in greeting_settle(). Whoever may not have one more is
 * told why. Takes over @fd_take. A negative errno, or what account_take() returns. */
int greet_new(struct greeting *greeting, int fd_take);
/* Admits those that wait for whom there is room by now. To be called after peers_sweep(). */
void greeting_settle(struct greeting *greeting);
/*
 * HELLO: the connection enters the namespace @name. STATE_E_NOT_FOUND: there is none that it may
 * get from; or as client_join() and namespace_new(). The peer is to be dropped then.
 */
int greet_enter(struct peer *peer, const char *name, size_t len);
/* It has sent HELLO and LEDGER in time. */
void greet_end(struct peer *peer);
