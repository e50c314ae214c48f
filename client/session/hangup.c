/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/session/hangup.h"
#include "client/session/thread.h"

enum { STACK = 128 << 10 }; /* besides poll() it calls nothing */

/* How often it looks whether it is to end: the program may close the socket, as programs of forked
 * children often do, and then nothing wakes it for that. */
enum { LOOK_MS = 1000, CHILD_LOOK_MS = 100 };

/* Messages do not wake the thread: it polls only for the end of the connection. */
static void *wait_for_end(void *arg)
{
	struct hangup *h = arg;
	struct pollfd p = { .fd = h->socket };
	int n;

	do {
		n = poll(&p, 1, h->look_ms);
		if (n < 0 && errno != EINTR)
			poll(NULL, 0, 10); /* no memory */
	} while (n <= 0 && atomic_load(&h->state) != HANGUP_UNWATCHED);
	hangup_note(h);
	atomic_store(&h->ended, 1);
	syscall(SYS_futex, &h->ended, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return NULL;
}

void hangup_watch(struct hangup *h, int socket, bool inherited)
{
	int unwatched = HANGUP_UNWATCHED;

	if (socket < 0 ||
	    atomic_load_explicit(&h->state, memory_order_relaxed) != HANGUP_UNWATCHED ||
	    !atomic_compare_exchange_strong(&h->state, &unwatched, HANGUP_STARTING))
		return;
	h->socket = socket;
	h->look_ms = inherited ? CHILD_LOOK_MS : LOOK_MS;
	atomic_store(&h->state, thread_start(&h->thread, STACK, wait_for_end, h) ? HANGUP_UNWATCHED
										 : HANGUP_WATCHED);
}

void hangup_end(struct hangup *h)
{
	if (atomic_load(&h->state) == HANGUP_UNWATCHED)
		return;
	atomic_store(&h->state, HANGUP_UNWATCHED);
	pthread_join(h->thread, NULL);
}
