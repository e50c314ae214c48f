/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a connection, for those who sleep on words of the catalog: the daemon wakes them, and
 * nobody would when it has ended. So a session that somebody sleeps with has a thread, which does
 * nothing but wait for the end of its connection.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "util/clock.h"

enum hangup_state { HANGUP_UNWATCHED, HANGUP_STARTING, HANGUP_WATCHED };

/* Starts as zeroes. */
struct hangup {
	_Atomic uint32_t ended;	  /* a private futex word: 1 when it has, if it was watched */
	_Atomic int state;	  /* enum hangup_state */
	_Atomic int64_t since_ns; /* when it was noticed, by the monotonic clock; 0: it was not */
	pthread_t thread;
	int socket;
};

/*
 * Before a sleep: watches @socket from now on. Without a thread to be had it does not, and the next
 * call tries again.
 */
void hangup_watch(struct hangup *h, int socket);
/* The socket is about to be closed, and nobody else has it any more. */
void hangup_end(struct hangup *h);
/* In a forked child, where the thread is not. */
static inline void hangup_fork_child(struct hangup *h)
{
	atomic_store(&h->state, HANGUP_UNWATCHED);
	atomic_store(&h->ended, 0);
}

/* Somebody has noticed it. */
static inline void hangup_note(struct hangup *h)
{
	int64_t never = 0;

	atomic_compare_exchange_strong(&h->since_ns, &never, now_mono_ns());
}
