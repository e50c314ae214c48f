/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a thread of the library's. */
#pragma once

#include <pthread.h>
#include <signal.h>

/* The thread is detached and takes no signals, which are for the program's own. 0, or a negative
 * errno. */
static inline int cuda_start_thread(void *(*run)(void *))
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t id;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&id, &attr, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}
