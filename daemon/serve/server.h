/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon at work: one event loop that owns the listening socket, the peers and the state.
 * Everything here runs on the loop's thread; only making and destroying the pages of large segments
 * is done by libuv's workers (space.c).
 */
#pragma once

#include <uv.h>

#include "daemon/state/state.h"
#include "util/list.h"

struct server_options {
	int listen_fd; /* listening, non-blocking; the server closes it */
	unsigned fds;  /* how many descriptors there may be */
	struct state_limits limits;
	int64_t idle_exit_ns; /* end after so long without clients and tensors; < 0: never */
};

struct server {
	uv_loop_t loop;
	uv_poll_t listener;
	uv_poll_t guard;	/* sizes of segments that clients have changed */
	uv_timer_t space_timer; /* the next deadline of a create that waits for room */
	uv_timer_t warm_timer;	/* the next trim of warm segments */
	uv_timer_t idle_timer;
	uv_timer_t orphan_timer; /* the next look at orphans */
	uv_timer_t accept_timer; /* runs while descriptors are too few even to turn a client away */
	uv_signal_t signals[2];
	struct state state;
	int listen_fd;
	unsigned fds;
	int spare_fd; /* given up for a moment when descriptors run out, to turn a client away */
	struct list peers;    /* of struct peer */
	struct list waiting;  /* of struct create: they wait for room */
	struct list working;  /* of struct create: a worker makes their segment */
	struct list settling; /* of struct settle */
	unsigned jobs;	      /* with the workers */
	unsigned peer_count;  /* orphans included */
	unsigned behind;      /* peers with more messages than one turn reads */
	unsigned orphans;
	unsigned orphan_ms; /* from the last look at them to the next */
	int64_t slow_after; /* not before that is a slow one looked at */
	uint64_t room_seen; /* state.memory.room_made when waiting creates were last tried */
	int64_t idle_exit_ns;
	bool stopping;
};

/* -ENOMEM, -ENOSPC, -EMFILE, ... On failure the listening socket is closed too. */
int server_init(struct server *server, uint64_t instance, const struct server_options *options);
/* Until SIGTERM, SIGINT or idleness; then every client has been dropped and nothing of the instance
 * is left. */
void server_run(struct server *server);
void server_deinit(struct server *server);

/*
 * To be called when something may have changed: room for those who wait, doomed segments, timers.
 */
void server_settle(struct server *server);
