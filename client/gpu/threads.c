/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/gpu/threads.h"
#include "util/cancel.h"
#include "util/fd.h"

struct cuda_queues cuda_queues = {
	.leases = LIST_INIT(cuda_queues.leases),
	.publications = LIST_INIT(cuda_queues.publications),
};

static _Atomic int wake = -1; /* eventfd */

void cuda_queue_add(struct list *queue, struct list *link)
{
	list_del(link);
	list_add_tail(queue, link);
	cuda_wake();
}

void cuda_wake(void)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	int fd = atomic_load(&wake);
	uint64_t one = 1;
	int saved = errno;

	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		errno = saved; /* full: it is awake */
}

int cuda_wake_open(void)
{
	int fd = fd_raise(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

	atomic_store(&wake, fd);
	return fd < 0 ? -errno : 0;
}

void cuda_wake_close(void)
{
	atomic_store(&wake, fd_close(wake));
}

int cuda_wake_peek(void)
{
	return atomic_load(&wake);
}
