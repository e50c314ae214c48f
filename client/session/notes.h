/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: messages that nobody waits for, and that must not be lost. Those that do not fit into the
 * socket are kept in their order. The next sender sends them before its own message, but there may
 * be none for a long time. So a thread waits for space as long as any are kept.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct session;

enum notes_thread { NOTES_NO_THREAD, NOTES_THREAD_RUNS, NOTES_THREAD_DONE };

/* All zeroes at first. The session's receive mutex guards it. */
struct notes {
	unsigned char *bytes; /* whole messages; each begins at a multiple of 8 */
	size_t used;
	_Atomic bool due; /* `used` is not 0 */
	int state;	  /* enum notes_thread */
	pthread_t thread;
};

/* Sends what is kept. Returns 0, or why the first of those that are left cannot be sent. */
int notes_send_locked(struct session *s);
/* To be called when no call uses the session any more: ends the thread. */
void notes_end(struct session *s);
/* For a forked child, where the thread does not exist and the notes are the parent's. */
void notes_fork_child(struct notes *n);
