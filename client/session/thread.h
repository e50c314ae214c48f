/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a thread of the library's. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/*
 * The thread takes no signals, which are for the program's own. @stack: how many bytes it needs; 0:
 * as threads have. 0, or a negative errno.
 */
static inline int thread_start(pthread_t *id, size_t stack, void *(*run)(void *), void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int r = EINVAL;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (stack && !pthread_attr_init(&attr)) {
		if (!pthread_attr_setstacksize(&attr, stack))
			r = pthread_create(id, &attr, run, arg);
		pthread_attr_destroy(&attr);
	}
	if (r == EINVAL) /* or the program's thread-local data need more */
		r = pthread_create(id, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

/* One that nobody waits for. */
static inline int thread_start_detached(void *(*run)(void *))
{
	pthread_t id;
	int r = thread_start(&id, 0, run, NULL);

	if (!r)
		pthread_detach(id);
	return r;
}
