/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of all GPU state, and the work that is left to the two GPU threads. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"
#include "util/list.h"

struct cuda_session;
struct session;

/* Pauses between polls of a GPU's work grow from the first to the last value. */
#define GPU_POLL_FIRST_NS (20 * NS_PER_US)
#define GPU_POLL_LAST_NS (1 * NS_PER_MS)
/* How long exit() waits for other threads. */
#define GPU_EXIT_NS (1 * NS_PER_SEC)

/* Work that is left to the polling thread, and how to wake it. */

/* Linked by queue_link, under cuda_lock. Only poll_thread.c takes anything off them. */
struct cuda_queues {
	struct list leases;	  /* struct cuda_lease: give it up when its event has come */
	struct list publications; /* struct cuda_publication: look after its event, or its end */
};
extern struct cuda_queues cuda_queues;

/* Moves @link, which is in no queue or in @queue, to the end of @queue. Called with cuda_lock. */
void cuda_queue_add(struct list *queue, struct list *link);

/* Wakes the library's thread, because something has happened that it has to handle, such as the end
 * of a connection. */
void cuda_wake(void);

/* ---- For the thread ---- */

/* The descriptor that the thread polls, which cuda_wake() makes readable. cuda_wake_open() returns
 * 0, or a negative errno. */
int cuda_wake_open(void);
void cuda_wake_close(void);
int cuda_wake_peek(void);

/*
 * The one lock of all that concerns GPUs. It is taken after any other of the library's, and never
 * held across a request or a call that waits.
 */

extern pthread_mutex_t cuda_lock;
extern pthread_mutex_t cuda_asking; /* held while a thread queries events, without cuda_lock, before
				       which it is taken: a context's calls wait for each other,
				       some as long as the GPU is at work */
extern pthread_cond_t cuda_changed; /* an import or a mapping was opened, a pool imported, memory
				       of one freed, an export made, a session is not claimed any
				       more */

/* Waits for a change. False: the deadline has passed. Called with cuda_lock. */
bool cuda_wait_changed(int64_t deadline);

/* Tasks that are left to the slow thread: calls of the driver that close memory. */

struct cuda_task {
	struct list link;
	void (*run)(struct cuda_task *task);   /* may free it */
	void (*child)(struct cuda_task *task); /* called instead in a forked child; or NULL */
};

/* ---- The caller has cuda_lock ---- */

void cuda_task_add(struct cuda_task *task);
/* Wakes the slow thread, because draft buffers have to be given back now or later. */
void cuda_tasks_wake(void);
/* True if there is a slow thread, so that tasks will be done. */
bool cuda_tasks_served(void);

/* ---- For the slow thread ---- */

/* To be called before it starts, and after it has started. With cuda_lock. */
void cuda_tasks_prepare(void);
void cuda_tasks_serve(void);
/* Waits until there is a task, or for @due ns, unless that is 0. Returns the task or NULL. */
struct cuda_task *cuda_task_next(int64_t due);

/* In a forked child, which has no slow thread: first under the lock, then without any. */
void cuda_tasks_inherit(void);
void cuda_tasks_inherited(void);

/* Work that must be marked on a stream that is being captured. The slow thread marks it when the
 * capture has ended. */

struct cuda_captured {
	struct list link;
	/* Marks the place, and may free the containing struct. False: still being captured. */
	bool (*mark)(struct cuda_captured *captured);
};

/* Calls @captured->mark(), again and again, until it returns true. There is a slow thread. */
void cuda_captured_wait(struct cuda_captured *captured);

/*
 * The library's thread. A process has one, started when it first uses GPUs. It reads the sockets of
 * sessions that use GPUs (for FREED and UNMAP), checks whether queued GPU work has ended, and then
 * does what had to wait for that: gives up leases, tells the daemon that a producer's work is
 * finished, calls the deleters of published tensors. The slow thread closes memory.
 */

/* cuda_session_get(), and starts the library's thread. To be called before work is left to that
 * thread. Returns 0, or a negative errno with a text. */
int cuda_session_with_thread(struct session *s, struct cuda_session **out);

/* Does at once the thread's work on publications that have no deleter to call, so that draft
 * buffers that the daemon has just freed can be reused. */
void cuda_catch_up(struct session *s);

/* In a forked child, where the library's thread is not: first under the lock, then without any. */
void cuda_thread_inherit(void);
void cuda_thread_give_up_leases(void);

/*
 * The slow thread: a thread of its own for calls of the driver that close memory, or mark a place
 * on a stream that may be full. They may wait until the device has done what is queued there, and
 * that work may wait for another process, which may wait for a lease of this one. So no thread that
 * others wait for makes such calls: neither the library's thread nor one that releases or closes
 * something. They leave tasks to the slow thread, which also gives back draft buffers that have
 * been free for long.
 */

/* Starts the slow thread if need be. The caller has cuda_lock. 0, or a negative errno. */
int cuda_slow_thread_start(void);
