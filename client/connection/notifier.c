/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/connection/notifier.h"
#include "client/error.h"
#include "util/cancel.h"
#include "util/thread.h"

void notifier_init(struct notifier *n, void (*wait)(struct notifier *))
{
	*n = (struct notifier){ .fd = -1, .wait = wait };
	pthread_mutex_init(&n->mutex, NULL);
}

static void tell(struct notifier *n, enum notifier_task task)
{
	atomic_store(&n->task, task);
	syscall(SYS_futex, &n->task, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *notifier_run(void *arg)
{
	struct notifier *n = arg;
	uint32_t task;

	while ((task = atomic_load(&n->task)) != NOTIFIER_ENDS) {
		uint32_t waits = NOTIFIER_WAITS;

		if (task == NOTIFIER_IDLE) {
			syscall(SYS_futex, &n->task, FUTEX_WAIT_PRIVATE, NOTIFIER_IDLE, NULL, NULL,
				0);
			continue;
		}
		n->wait(n);
		if (atomic_compare_exchange_strong(&n->task, &waits, NOTIFIER_IDLE))
			eventfd_write(notifier_fd(n), 1);
	}
	return NULL;
}

static int start(struct notifier *n, const char *what)
{
	int r, fd = fd_raise(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

	if (fd < 0)
		return tl_fail(-errno, "no descriptor for '%s': %s", what, strerror(errno));
	n->identity = fd_identify(fd);
	n->fd = fd;
	n->process = getpid();
	atomic_store(&n->task, NOTIFIER_WAITS);
	r = thread_start(&n->thread, 0, notifier_run, n);
	if (!r)
		return 0;
	atomic_store(&n->task, NOTIFIER_NONE);
	n->fd = -1; /* before fd_close(): a forked child closes the number it finds */
	fd_close(fd);
	return tl_fail(r, "no thread for '%s': %s", what, thread_refusal(r));
}

int notifier_start(struct notifier *n, const char *what)
{
	int r = 0;

	pthread_mutex_lock(&n->mutex);
	if (atomic_load(&n->task) == NOTIFIER_NONE)
		r = start(n, what);
	pthread_mutex_unlock(&n->mutex);
	return r;
}

void notifier_again(struct notifier *n)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	eventfd_t count;
	int fd;

	if (atomic_load(&n->task) == NOTIFIER_NONE)
		return;
	fd = notifier_fd(n);
	if (fd < 0)
		return;
	eventfd_read(fd, &count);
	if (atomic_load(&n->task) == NOTIFIER_IDLE)
		tell(n, NOTIFIER_WAITS);
}

void notifier_end(struct notifier *n)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	if (atomic_load(&n->task) == NOTIFIER_NONE || n->process != getpid())
		return;
	tell(n, NOTIFIER_ENDS);
	pthread_join(n->thread, NULL);
	eventfd_write(notifier_fd(n), 1); /* wakes a loop that polls a duplicate of it */
	atomic_store(&n->task, NOTIFIER_NONE);
}

void notifier_free(struct notifier *n)
{
	fd_close(notifier_fd(n));
	n->fd = -1;
	pthread_mutex_destroy(&n->mutex);
}
