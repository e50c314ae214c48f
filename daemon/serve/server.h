/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at work: one event loop that owns the listening socket, the peers and the state. All
 * of it runs on the loop's thread; only the pages of large segments are made and destroyed by
 * libuv's workers (space.c).
 */
#pragma once

#include <uv.h>

#include "daemon/serve/peer.h"
#include "daemon/serve/settle.h"
#include "daemon/serve/space.h"
#include "daemon/state/state.h"

struct server {
	uv_loop_t loop;
	uv_prepare_t settle; /* runs server_settle() before the loop waits */
	uv_poll_t listener;
	uv_poll_t guard;       /* sizes of segments that clients have changed */
	uv_timer_t warm_timer; /* the next trim of warm segments */
	uv_timer_t idle_timer;
	uv_timer_t accept_timer; /* runs while descriptors are too few even to turn a client away */
	uv_signal_t signals[2];
	struct state state;
	struct peers peers;
	struct space space;
	struct settling settling;
	int listen_fd;
	unsigned fds;
	int spare_fd; /* given up for a moment when descriptors run out, to turn a client away */
	int64_t idle_exit_ns;
	bool stopping;
};

static inline struct server *server_of(struct peer *peer)
{
	return container_of(peer->peers, struct server, peers);
}
