/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads of the library's. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

/* The thread takes no signals, which are for the program's own threads. @stack: how many bytes it
 * needs; 0: the usual size. Returns 0 or a negative errno. -EAGAIN, of a limit of threads, is
 * -ENOMEM: to a get it would mean that no version is newer, and to a watch that nothing has
 * happened. */
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
	if (r == EINVAL) /* perhaps the program's thread-local data need more */
		r = pthread_create(id, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r == EAGAIN ? -ENOMEM : -r;
}

/* The reason, for a text that begins with "no thread". */
static inline const char *thread_refusal(int r)
{
	return r == -ENOMEM ? "too little memory, or as many threads as 'ulimit -u' or its control "
			      "group's pids.max allow"
			    : strerror(-r);
}

/* Starts a thread that is never joined. */
static inline int thread_start_detached(void *(*run)(void *))
{
	pthread_t id;
	int r = thread_start(&id, 0, run, NULL);

	if (!r)
		pthread_detach(id);
	return r;
}
