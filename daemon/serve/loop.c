/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps libuv from calling abort(); see loop.h. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/serve/loop.h"

static sigjmp_buf gave_up;

static void on_abort_end(int number)
{
	static const char text[] =
		"tensorleased: cannot start: no memory or no thread for libuv's workers; see ulimit -u\n";

	(void)number;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(EXIT_FAILURE);
}

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

int loop_start_workers(void)
{
	struct sigaction action = { .sa_handler = on_abort_end }, before;
	uv_loop_t loop;
	uv_work_t work;
	int r;

	sigaction(SIGABRT, &action, &before);
	r = uv_loop_init(&loop);
	if (!r) {
		r = uv_queue_work(&loop, &work, work_none, NULL);
		uv_run(&loop, UV_RUN_DEFAULT); /* until it is done */
		uv_loop_close(&loop);
	}
	sigaction(SIGABRT, &before, NULL);
	return r;
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

static void poll_none(uv_poll_t *poll, int status, int events)
{
	(void)poll;
	(void)status;
	(void)events;
}

/* libuv's table of descriptors grows to the highest one that was ever polled, and never shrinks. */
int loop_provide(uv_loop_t *loop, int fd_peek, unsigned fds)
{
	int high = fcntl(fd_peek, F_DUPFD_CLOEXEC, (int)fds - 1), r;
	uv_poll_t poll;

	if (high < 0)
		return -errno;
	r = uv_poll_init(loop, &poll, high);
	if (!r) {
		r = uv_poll_start(&poll, UV_READABLE, poll_none);
		uv_close((uv_handle_t *)&poll, NULL);
		uv_run(loop, UV_RUN_DEFAULT); /* until it is closed */
	}
	close(high);
	return r;
}

/* libuv adds a descriptor when it polls next, and accepts that it is there already. */
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
