/* SPDX-License-Identifier: Apache-2.0 */
/* The server, and those of its parts that have no header of their own. */
#pragma once

#include <uv.h>

#include "daemon/keeper/keeper_link.h"
#include "daemon/recover/recover.h"
#include "daemon/serve/greet.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/space.h"
#include "daemon/state/state.h"
#include "util/leftovers.h"

/* Ends lifetimes in time. */

struct expiry {
	int64_t streams_at; /* when the ends in streams that wait are looked at */
	struct common *common;
	uv_timer_t timer; /* runs while a lifetime is to end */
};

void expiry_init(struct expiry *expiry, uv_loop_t *loop, struct common *common);
/* Ends some lifetimes whose time has come. */
void expiry_run_due(struct expiry *expiry);
/* Starts the timer for the next lifetime. To be called last before the loop waits. */
void expiry_arm(struct expiry *expiry);
/* True if there are more lifetimes whose time has come. */
bool expiry_busy(const struct expiry *expiry);
void expiry_stop(struct expiry *expiry);

/* SYNC: a request that is answered once all work is done that earlier messages began. */

struct syncs {
	struct list list; /* of struct sync, oldest first */
	uint64_t rounds;  /* how often the loop has asked for all events */
};

void sync_add(struct syncs *syncs, struct peer *peer, uint32_t serial);
/* To be called before the loop asks for all events. True: a SYNC came after the last call. It must
 * not be answered before the loop has asked, since earlier messages on other sockets may not have
 * been seen. */
bool sync_round(struct syncs *syncs);
/* Answers the oldest SYNC, which may drop its peer. False: none may be answered yet. */
bool sync_answer_one(struct syncs *syncs);

/*
 * The daemon at work: one event loop that owns the listening socket, the peers and the state.
 * Everything runs on the loop's thread, except that libuv's workers make and destroy the pages of
 * large segments (jobs.c).
 */

enum { SERVER_SIGNALS = 4, SERVER_WHY_MAX = 448 };

/* Objects in /dev/shm, sorted. */
struct object_ids {
	struct object_id {
		uint64_t instance, key;
	} * list;
	size_t count;
};

/* A job that removes, once we serve, what the last daemon left of segments, and what daemons of our
 * user left in /dev/shm. Clients can write to the segments, and so hold up the thread that removes
 * them. */
struct sweep {
	struct job job;
	uint64_t instance;	   /* of the last daemon: the first of NAMESPACES_MAX */
	struct object_ids unknown; /* objects in these instances */
	struct leftovers left;
};

struct server {
	uv_loop_t loop;
	uv_poll_t listener;
	uv_poll_t guard;       /* sizes of segments that clients have changed */
	uv_poll_t ended;       /* segments that clients still had open */
	uv_poll_t keeper_poll; /* the keeper answers, or has ended; if keeper->fd is not -1 at the
				  start */
	uv_timer_t warm_timer; /* the next trim of warm segments */
	uv_timer_t remnant_timer; /* the next look at remnants */
	uint64_t remnant_ns;	  /* the time for which it was started */
	uv_timer_t idle_timer;
	bool has_tensors;	 /* when idle_timer was started */
	uv_timer_t accept_timer; /* runs while descriptors are too few even to turn a client away */
	uv_signal_t signals[SERVER_SIGNALS];
	struct keeper_link *keeper; /* outlives us */
	struct common common;
	struct namespaces namespaces;
	struct turns turns;
	uint64_t published_ns; /* the longest turn that the catalogs show */
	struct account house;  /* no user's; has the turns that belong to no user */
	struct turn accept;
	struct turn guard_turn;
	struct turn spoiled; /* segments whose tensors are to lose their names: store.spoiled */
	struct turn waking;  /* sleepers to be woken */
	struct peers peers;
	struct greeting greeting;
	struct space space;
	struct sweep sweep;
	struct syncs syncs;
	struct expiry expiry;
	struct http *http; /* NULL: there is none */
	bool has_keeper;   /* its handle is in the loop */
	int listen_fd;
	int spare_fd; /* given up for a moment when descriptors run out, to turn a client away */
	int64_t idle_exit_ns, hello_ns;
	bool stopping;
	bool had_clients; /* there were clients when it began to stop */
	bool (*may_leave)(void *context, const struct namespaces *all, char why[SERVER_WHY_MAX]);
	bool (*is_reachable)(void *context);
	void *context;
};

static inline struct server *server_of(struct peer *peer)
{
	return container_of(peer->peers, struct server, peers);
}

/*
 * Takes over the last daemon's state (recover/recover.h): the namespaces that were kept. Makes
 * configured namespaces that were not kept. Returns a positive outcome with @why, or a negative
 * errno: then this process must not go on with that instance.
 */
int takeover_namespaces(struct server *server, const struct namespace_config *configs,
			unsigned count, char why[ADOPT_WHY_MAX]);
/* Takes over the clients of these namespaces and unfinished work, when there is a loop, and forgets
 * the rest. Fails as takeover_namespaces() does. */
int takeover_clients(struct server *server, char why[ADOPT_WHY_MAX]);
/* Removes objects without a segment. On a worker, since clients that have them open may make that
 * take long. */
void takeover_unknown_remove(struct sweep *sweep);
/* Has the keeper forget what nobody took over, when there is a loop. -ENOMEM. */
int takeover_rest_forget(struct server *server);
