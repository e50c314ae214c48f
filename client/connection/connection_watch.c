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

/* The thread ends this long after the last sleep. In a forked child it wakes more often, because
 * nothing wakes it when the program closes the socket, as programs often do after a fork. */
#define REST_NS NS_PER_SEC
enum { CHILD_POLL_MS = 100 };

static int poll_ms(struct connection_watch *w)
{
	const int left = deadline_left_ms(atomic_load(&w->asleep_until_ns) + REST_NS);

	return w->inherited ? CHILD_POLL_MS : left + 1;
}

static bool somebody_sleeps(struct connection_watch *w)
{
	return !deadline_passed(atomic_load(&w->asleep_until_ns) + REST_NS);
}

/*
 * True if the thread is to end.
 *
 * ORDER: here `state`, then `asleep_until_ns`; in connection_watch() `asleep_until_ns`, then
 * `state`. Each side writes its own word, then reads the other's, so that no sleeper relies on a
 * thread that ends.
 */
static bool leave(struct connection_watch *w)
{
	int watched = CONNECTION_WATCHED, left = CONNECTION_LEFT;

	if (somebody_sleeps(w) || !atomic_compare_exchange_strong(&w->state, &watched, left))
		return false;
	return !somebody_sleeps(w) ||
	       !atomic_compare_exchange_strong(&w->state, &left, CONNECTION_WATCHED);
}

/* The thread. Messages do not wake it: it polls only for the end of the connection. */
static void *wait_for_end(void *arg)
{
	struct connection_watch *w = arg;
	struct pollfd p = { .fd = w->socket };
	int n;

	do {
		n = poll(&p, 1, poll_ms(w));
		if (n < 0 && errno != EINTR)
			poll(NULL, 0, 10); /* the kernel lacked memory: try again soon */
		if (n == 0 && leave(w))
			return NULL;
	} while (n <= 0 && atomic_load(&w->state) != CONNECTION_UNWATCHED);
	connection_watch_note(w);
	atomic_store(&w->ended, 1);
	syscall(SYS_futex, &w->ended, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return NULL;
}

void connection_watch(struct connection_watch *w, int socket, bool inherited, int64_t ns)
{
	const int64_t until = now_mono_coarse_ns() + (ns < SLEEP_LONG_NS ? ns : SLEEP_LONG_NS);
	int64_t known = atomic_load_explicit(&w->asleep_until_ns, memory_order_relaxed);
	int state;

	/* Waits may come very often, so the word changes at most once a second. It only grows. */
	while (known < until &&
	       !atomic_compare_exchange_weak(&w->asleep_until_ns, &known, until + NS_PER_SEC)) {}
	state = atomic_load(&w->state);
	if (socket < 0 || (state != CONNECTION_UNWATCHED && state != CONNECTION_LEFT) ||
	    !atomic_compare_exchange_strong(&w->state, &state, CONNECTION_WATCH_STARTING))
		return;
	if (state == CONNECTION_LEFT) {
		cleanup_(cancel_allow) int cancel = cancel_forbid();

		pthread_join(w->thread, NULL);
	}
	w->socket = socket;
	w->inherited = inherited;
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
