/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that wait for space in the socket of a session; request.h has the functions. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum notes_thread {
	NOTES_NO_THREAD,
	NOTES_THREAD_RUNS,
	NOTES_THREAD_DONE, /* it has ended or is about to, and is to be joined */
	NOTES_OVER,	   /* the session ends: no thread is started any more */
};

/* Messages that nobody waits for, and that could not be sent yet; receive_mutex. */
struct notes {
	unsigned char *bytes; /* whole messages in their order; each begins at a multiple of 8 */
	size_t used;
	_Atomic bool due; /* `used` is not 0 */
	int state;	  /* enum notes_thread */
	pthread_t thread; /* sends them when there is space */
};
