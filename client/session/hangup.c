/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/session/hangup.h"
#include "client/session/thread.h"

enum { STACK = 128 << 10 }; /* besides poll() it calls nothing */

/* Messages do not wake the thread: it polls only for the end of the connection. */
static void *wait_for_end(void *arg)
{
	struct hangup *h = arg;
	struct pollfd p = { .fd = h->socket };

	while (poll(&p, 1, -1) <= 0) {
		if (errno != EINTR)
			poll(NULL, 0, 10); /* no memory */
	}
	hangup_note(h);
	atomic_store(&h->ended, 1);
	syscall(SYS_futex, &h->ended, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return NULL;
}

void hangup_watch(struct hangup *h, int socket)
{
	int unwatched = HANGUP_UNWATCHED;

	if (socket < 0 ||
	    atomic_load_explicit(&h->state, memory_order_relaxed) != HANGUP_UNWATCHED ||
	    !atomic_compare_exchange_strong(&h->state, &unwatched, HANGUP_STARTING))
		return;
	h->socket = socket;
	atomic_store(&h->state, thread_start(&h->thread, STACK, wait_for_end, h) ? HANGUP_UNWATCHED
										 : HANGUP_WATCHED);
}

/* A forked child closes its copy of the socket at once, so this takes nothing from the child. */
void hangup_end(struct hangup *h, int socket)
{
	if (atomic_load(&h->state) == HANGUP_UNWATCHED)
		return;
	if (socket < 0)
		pthread_cancel(h->thread);
	else
		shutdown(socket, SHUT_RDWR);
	pthread_join(h->thread, NULL);
	atomic_store(&h->state, HANGUP_UNWATCHED);
}
