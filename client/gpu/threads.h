/* SPDX-License-Identifier: Apache-2.0 */
/* What is left to the library's thread (thread.h), and what wakes it. */
#pragma once

#include "util/list.h"

/* By their queue_link; cuda_lock. Only the thread's file takes anything off them. */
struct cuda_queues {
	struct list leases;	  /* struct cuda_lease: give it up when its event has come */
	struct list publications; /* struct cuda_publication: look after its event, or its end */
};
extern struct cuda_queues cuda_queues;

/* Puts what is in no queue, or in that one, at the end of @queue. The caller has cuda_lock. */
void cuda_queue_add(struct list *queue, struct list *link);

/* Something has happened that the thread has to look at, such as a connection that has ended. */
void cuda_wake(void);

/* ---- For the thread ---- */

/* What it polls: readable when it was woken. 0, or a negative errno. */
int cuda_wake_open(void);
void cuda_wake_close(void);
int cuda_wake_peek(void);
