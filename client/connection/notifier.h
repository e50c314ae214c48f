/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor for event loops. A thread waits in the loop's stead, and makes the descriptor
 * readable when there is something to fetch. It stays readable until notifier_again().
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "util/fd.h"

/* The task of the thread. A private futex word, and the interrupt of its waits. */
enum notifier_task {
	NOTIFIER_NONE, /* there is no thread, and no descriptor */
	NOTIFIER_IDLE, /* the descriptor is readable */
	NOTIFIER_WAITS,
	NOTIFIER_ENDS,
};

struct notifier {
	_Atomic uint32_t task;
	int fd;			     /* or -1 */
	struct fd_identity identity; /* of fd, which the program may close */
	pthread_mutex_t mutex;	     /* held while the descriptor is made */
	pthread_t thread;
	pid_t process; /* the process that runs the thread */
	void (*wait)(struct notifier *);
};

/* @wait must return when there is something to fetch (an error, too), and when the task is not
 * NOTIFIER_WAITS any more. */
void notifier_init(struct notifier *n, void (*wait)(struct notifier *));
/* The descriptor, or -1 if there is none, or the program has closed it. */
static inline int notifier_fd(const struct notifier *n)
{
	return n->fd >= 0 && fd_is(n->fd, &n->identity) ? n->fd : -1;
}
/* Starts the thread unless it runs already. @what is named in error texts. */
int notifier_start(struct notifier *n, const char *what);
/* To be called when everything has been fetched. */
void notifier_again(struct notifier *n);
/* Ends the thread, if it is this process's. No call on the notifier may be under way. */
void notifier_end(struct notifier *n);
/* Closes the descriptor. */
void notifier_free(struct notifier *n);
