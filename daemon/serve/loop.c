/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's dealings with libuv and the scheduler; see loop.h. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/serve/loop.h"
#include "util/clock.h"

#define SLICE_NS (100 * NS_PER_US) /* the least that Linux takes */

static sigjmp_buf gave_up;
static bool broken; /* libuv's workers could not be started */

/* POSIX lets a process survive abort() if the handler of its signal does not return. */
static void on_abort_return(int number)
{
	(void)number;
	siglongjmp(gave_up, 1);
}

static void work_none(uv_work_t *work)
{
	(void)work;
}

int loop_attempt(int (*make)(void *arg), void *arg)
{
	struct sigaction action = { .sa_handler = on_abort_return }, before;
	volatile int r = -ENOMEM;

	sigaction(SIGABRT, &action, &before);
	if (!sigsetjmp(gave_up, 1))
		r = make(arg);
	sigaction(SIGABRT, &before, NULL);
	return r;
}

static int start_workers(void *arg)
{
	static uv_loop_t loop; /* static: a worker may still use both after the loop has aborted */
	static uv_work_t work;
	int r;

	(void)arg;
	r = uv_loop_init(&loop);
	if (r)
		return r;
	r = uv_queue_work(&loop, &work, work_none, NULL);
	uv_run(&loop, UV_RUN_DEFAULT); /* until the job is done */
	uv_loop_close(&loop);
	return r;
}

int loop_start_workers(void)
{
	int r = loop_attempt(start_workers, NULL);

	broken = r != 0;
	return r;
}

bool loop_is_broken(void)
{
	return broken;
}

/* libuv adds the descriptor at its next poll, and accepts that it is there already. */
int loop_poll(uv_poll_t *poll, int fd, int events, uv_poll_cb cb)
{
	struct epoll_event entry = { .data.fd = fd };
	int r = uv_poll_start(poll, events, cb);

	if (r || !epoll_ctl(uv_backend_fd(poll->loop), EPOLL_CTL_ADD, fd, &entry) ||
	    errno == EEXIST)
		return r;
	r = -errno;
	uv_poll_stop(poll);
	return r;
}

/* The first size of Linux's struct sched_attr. Linux's header also defines a struct that the C
 * library has, and the C library of Debian 12 lacks this one. */
struct scheduling {
	uint32_t size, policy; /* 0: the normal policy */
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period; /* in ns; of the normal policy, @runtime is a slice */
};

void loop_ask_for_short_slices(void)
{
	struct scheduling s = { 0 };

	if (syscall(SYS_sched_getattr, 0, &s, sizeof(s), 0) || s.policy)
		return; /* a process with another policy was given that on purpose */
	s.runtime = SLICE_NS;
	syscall(SYS_sched_setattr, 0, &s, 0);
}
