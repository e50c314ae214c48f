/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to the process: the list of its clients, its threads, fork() and exit(). */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "util/list.h"

void process_add_client(struct list *link);
void process_remove_client(struct list *link);

/* Locks the list and returns it. fork() holds this lock until it is done. */
struct list *process_lock(void);
void process_unlock(void);

/* Returns when no fork() is under way any more. */
void process_wait_fork(void);

/* Notes, and tells, whether this thread is in fork(), where handlers of the program may call us.
 * Nothing may wait for the fork then: process_fork_check() fails with -EDEADLK. */
void process_forks(bool now);
bool process_in_fork(void);
int process_fork_check(void);

/* Returns true once the process has begun to end. No session is made any more. */
bool process_exiting(void);

/* Threads of the library. */

/*
 * Starts a thread that takes no signals, which are for the program's own threads. @stack: how many
 * bytes it needs; 0: the usual size. Returns 0 or a negative errno. A limit of threads gives
 * -ENOMEM, not -EAGAIN: -EAGAIN would tell a get that no version is newer, and a watch that nothing
 * has happened.
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

/* fork() in a process that has clients. */

/* How long fork() waits for connections of the child's own. Without them the parent holds for the
 * child, so nothing is lost. Tests that count connections set a longer time. */
extern int64_t fork_timeout_ns;

/* To be called before the first client: 0, or a negative errno if fork() cannot be handled. */
int fork_prepare(void);
