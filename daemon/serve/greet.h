/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections until they are READY. Each counts in the shares of its user from the start, and takes
 * a place in a namespace once HELLO has named it. A user at its limit may have closed connections
 * that we have not finished ending. Then the new one waits for them.
 */
#pragma once

#include "daemon/serve/peer.h"

struct greeting {
	struct peers *peers;
	struct list list;    /* of struct peer, by greet: not READY yet, oldest first */
	struct list waiting; /* of struct newcomer: connections without a peer yet, oldest first */
	unsigned newcomers;  /* how many are waiting */
	int64_t time_ns;     /* how long a connection may take to be READY */
	uv_timer_t timer;
};

void greeting_init(struct greeting *greeting, struct peers *peers, uv_loop_t *loop,
		   int64_t time_ns);
void greeting_stop(struct greeting *greeting);

/*
 * Makes a peer of a new connection, now or in greeting_run_due(). A user that may not have another
 * one is told why. Takes over @fd_take. Returns a negative errno, or an outcome of account_take().
 */
int greet_new(struct greeting *greeting, int fd_take);
/* Admits waiting connections for which there is space by now. To be called after peers_sweep(). */
void greeting_run_due(struct greeting *greeting);
/*
 * HELLO: the connection enters the namespace @name. Returns STATE_E_NOT_FOUND if there is none that
 * it may get from; else as client_join() and namespace_new(). On failure the caller drops the peer.
 */
int greet_enter(struct peer *peer, const char *name, size_t len);
/* To be called when the peer has sent HELLO and LEDGER in time. */
void greet_end(struct peer *peer);
