/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/connection/connection_watch.h"
#include "util/cancel.h"
#include "util/thread.h"

enum { STACK = 128 << 10 }; /* the thread calls nothing but poll() */

/* How often the thread looks whether it should end. The program may close the socket, as programs
 * in forked children often do, and then nothing wakes the thread for that. */
enum { POLL_MS = 1000, CHILD_POLL_MS = 100 };

/* The thread ends when nobody has slept for so long. This is longer than one sleep. */
enum { IDLE_MS = 2000 };

/*
 * True if the thread is to end.
 *
 * ORDER: here `state`, then `slept`; in connection_watch() `slept`, then `state`. Each side writes
 * its own word, then reads the other's, so that no sleeper relies on a thread that ends.
 */
static bool leave(struct connection_watch *w, int *idle_ms)
{
	int watched = CONNECTION_WATCHED, left = CONNECTION_LEFT;

	*idle_ms = atomic_exchange(&w->slept, false) ? 0 : *idle_ms + w->poll_ms;
	if (*idle_ms < IDLE_MS || !atomic_compare_exchange_strong(&w->state, &watched, left))
		return false;
	return !atomic_load(&w->slept) ||
	       !atomic_compare_exchange_strong(&w->state, &left, CONNECTION_WATCHED);
}

/* The thread. Messages do not wake it: it polls only for the end of the connection. */
static void *wait_for_end(void *arg)
{
	struct connection_watch *w = arg;
	struct pollfd p = { .fd = w->socket };
	int idle_ms = 0;
	int n;

	do {
		n = poll(&p, 1, w->poll_ms);
		if (n < 0 && errno != EINTR)
			poll(NULL, 0, 10); /* no memory */
		if (n == 0 && leave(w, &idle_ms))
			return NULL;
	} while (n <= 0 && atomic_load(&w->state) != CONNECTION_UNWATCHED);
	connection_watch_note(w);
	atomic_store(&w->ended, 1);
	syscall(SYS_futex, &w->ended, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return NULL;
}

void connection_watch(struct connection_watch *w, int socket, bool inherited)
{
	int state;

	if (!atomic_load_explicit(&w->slept, memory_order_relaxed))
		atomic_store(&w->slept, true);
	state = atomic_load(&w->state);
	if (socket < 0 || (state != CONNECTION_UNWATCHED && state != CONNECTION_LEFT) ||
	    !atomic_compare_exchange_strong(&w->state, &state, CONNECTION_WATCH_STARTING))
		return;
	if (state == CONNECTION_LEFT) {
		cleanup_(cancel_allow) int cancel = cancel_forbid();

		pthread_join(w->thread, NULL);
	}
	w->socket = socket;
	w->poll_ms = inherited ? CHILD_POLL_MS : POLL_MS;
	atomic_store(&w->state, thread_start(&w->thread, STACK, wait_for_end, w)
					? CONNECTION_UNWATCHED
					: CONNECTION_WATCHED);
}

void connection_watch_end(struct connection_watch *w)
{
	if (atomic_load(&w->state) == CONNECTION_UNWATCHED)
		return;
	atomic_store(&w->state, CONNECTION_UNWATCHED);
	pthread_join(w->thread, NULL);
}
