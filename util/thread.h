/* SPDX-License-Identifier: Apache-2.0 */
/* Threads. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A number for this thread, from 1 on, that no other thread of the process ever has. */
uint64_t thread_unique(void);

/*
 * Starts a thread of the library. It takes no signals, which are for the program's own threads, but
 * those of its own faults: a program may handle these, as when a file that it has mapped was cut,
 * and the kernel kills a process whose thread blocks them. @stack: how many bytes it needs; 0: the
 * usual size. Returns 0 or a negative errno. A limit of threads gives -ENOMEM, not -EAGAIN: -EAGAIN
 * would tell a get that no version is newer, and a watch that nothing has happened.
 */
static inline int thread_start(pthread_t *id, size_t stack, void *(*run)(void *), void *arg)
{
	static const int faults[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
	sigset_t none, before;
	pthread_attr_t attr;
	int r = EINVAL;

	sigfillset(&none);
	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
		sigdelset(&none, faults[i]);
	pthread_sigmask(SIG_SETMASK, &none, &before);
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

/* The reason for a failure of thread_start(), for a text that begins with "no thread". */
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
