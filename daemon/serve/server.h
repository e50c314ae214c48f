/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at work: one event loop that owns the listening socket, the peers and the state. All
 * of it runs on the loop's thread; only the pages of large segments are made and destroyed by
 * libuv's workers (space.c).
 */
#pragma once

#include <uv.h>

#include "daemon/keeper/keep.h"
#include "daemon/serve/expiry.h"
#include "daemon/serve/greet.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/settle.h"
#include "daemon/serve/space.h"
#include "daemon/state/state.h"
#include "util/leftovers.h"

enum { SERVER_SIGNALS = 4, SERVER_WHY_MAX = 160 };

/* What daemons of our user left in /dev/shm is looked for once, while we serve. */
struct sweep {
	struct job job;
	struct leftovers left;
};

struct server {
	uv_loop_t loop;
	uv_poll_t listener;
	uv_poll_t guard;	  /* sizes of segments that clients have changed */
	uv_poll_t ended;	  /* segments that clients had open still */
	uv_poll_t keeper;	  /* it answers, or is gone; if keep->fd is not -1 at the start */
	uv_timer_t warm_timer;	  /* the next trim of warm segments */
	uv_timer_t remnant_timer; /* the next look at remnants */
	uint64_t remnant_ns;	  /* for which it was started */
	uv_timer_t idle_timer;
	uv_timer_t accept_timer; /* runs while descriptors are too few even to turn a client away */
	uv_signal_t signals[SERVER_SIGNALS];
	struct keep *keep; /* outlives us */
	struct shared shared;
	struct namespaces namespaces;
	struct turns turns;
	uint64_t published_ns; /* what the catalogs say of the longest turn */
	struct account house;  /* nobody's: has the turns that are no user's */
	struct turn accept;
	struct turn guard_turn;
	struct turn spoiled; /* segments whose names are to go: store.spoiled */
	struct turn waking;  /* sleepers that are to be woken */
	struct peers peers;
	struct greeting greeting;
	struct space space;
	struct sweep sweep;
	struct settling settling;
	struct expiry expiry;
	bool has_keeper; /* its handle is in the loop */
	int listen_fd;
	int spare_fd; /* given up for a moment when descriptors run out, to turn a client away */
	int64_t idle_exit_ns, hello_ns;
	bool stopping;
	bool had_clients; /* when it began to stop */
	bool (*may_leave)(void *context, bool adopting, char why[SERVER_WHY_MAX]); /* run.h */
	void *context;
};

static inline struct server *server_of(struct peer *peer)
{
	return container_of(peer->peers, struct server, peers);
}
