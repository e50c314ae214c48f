/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices the end of a connection, for threads that sleep on words of the catalog. The daemon wakes
 * such threads, but cannot once it has ended. So a session with sleepers has a thread which only
 * waits for the end of its connection. That thread ends when nobody has slept for a while, since a
 * process lives as long as any of its threads.
 *
 *	UNWATCHED --> STARTING --> WATCHED <--> LEFT --> STARTING
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"

enum connection_watch_state {
	CONNECTION_UNWATCHED,
	CONNECTION_WATCH_STARTING,
	CONNECTION_WATCHED,
	CONNECTION_LEFT, /* the thread ends unless it finds a sleeper; then join it */
};

/* All zeroes at first. */
struct connection_watch {
	_Atomic uint32_t ended; /* a private futex word: 1 when the connection has ended, if it was
				   watched */
	_Atomic int state;	/* enum connection_watch_state */
	_Atomic int64_t asleep_until_ns; /* the latest time until which a thread may sleep */
	_Atomic int64_t since_ns;	 /* when the end was noticed (monotonic); 0: not yet */
	pthread_t thread;
	int socket; /* polled by the thread */
	bool inherited;
};

/* The longest that one sleep may last. */
#define SLEEP_LONG_NS (4 * NS_PER_SEC)

/* Watches @socket, unless that is -1. To be called before each sleep; @ns is what is left of the
 * wait. If no thread can be started nothing is watched, and the next call tries again. @inherited:
 * a forked child has the socket, and its program may close it. */
void connection_watch(struct connection_watch *w, int socket, bool inherited, int64_t ns);
/* To be called between shutdown() and close() of the socket, when no other thread uses it. */
void connection_watch_end(struct connection_watch *w);
/* For a forked child, where the thread does not exist. */
static inline void connection_watch_fork_child(struct connection_watch *w)
{
	atomic_store(&w->state, CONNECTION_UNWATCHED);
	atomic_store(&w->ended, 0);
}

/* Notes when the end was noticed, if it is the first time. */
static inline void connection_watch_note(struct connection_watch *w)
{
	int64_t never = 0;

	atomic_compare_exchange_strong(&w->since_ns, &never, now_mono_ns());
}
