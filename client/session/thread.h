/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a thread of the library's. */
#pragma once

#include <pthread.h>
#include <signal.h>

/* The thread takes no signals, which are for the program's own. 0, or a negative errno. */
static inline int thread_start(pthread_t *id, void *(*run)(void *), void *arg)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(id, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

/* One that nobody waits for. */
static inline int thread_start_detached(void *(*run)(void *))
{
	pthread_t id;
	int r = thread_start(&id, run, NULL);

	if (!r)
		pthread_detach(id);
	return r;
}
