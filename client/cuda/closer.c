/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "client/cuda/buffer.h"
#include "client/cuda/closer.h"
#include "client/cuda/session.h"
#include "client/session/thread.h"
#include "util/clock.h"

/* Under cuda_lock. */
static struct {
	struct list tasks; /* struct cuda_task */
	pthread_cond_t changed;
	bool running;
	bool woken;
} closer = { .tasks = LIST_INIT(closer.tasks) };

static struct list inherited = LIST_INIT(inherited); /* the parent's tasks */

void cuda_closer_wake(void)
{
	closer.woken = true;
	if (closer.running)
		pthread_cond_signal(&closer.changed);
}

void cuda_closer_add(struct cuda_task *task)
{
	list_add_tail(&closer.tasks, &task->link);
	cuda_closer_wake();
}

bool cuda_closer_runs(void)
{
	return closer.running;
}

/* ---- Draft buffers ---- */

/*
 * Releases @cs, and claims the next session that has free buffers. NULL as @cs: the first. A
 * session that has ended meanwhile is in the list no more and has no next one, so it is the first
 * again.
 */
static struct cuda_session *next_with_buffers(struct cuda_session *cs)
{
	struct cuda_session *found = NULL;
	struct list *l;

	pthread_mutex_lock(&cuda_lock);
	l = cs && !list_empty(&cs->link) ? cs->link.next : cuda_sessions.next;
	for (; l != &cuda_sessions && !found; l = l->next) {
		struct cuda_session *next = list_entry(l, struct cuda_session, link);

		if (!list_empty(&next->buffers))
			found = next;
	}
	if (found)
		cuda_session_claim(found);
	if (cs)
		cuda_session_release(cs);
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

/* Gives back buffers that have been free for long. Returns the ns until some are again, or 0. */
static int64_t trim_buffers(void)
{
	struct cuda_session *cs = NULL;
	int64_t due = 0;

	while ((cs = next_with_buffers(cs))) {
		int64_t ns = cuda_buffers_trim(cs);

		if (ns && (!due || ns < due))
			due = ns;
	}
	return due;
}

/* ---- The thread ---- */

/* Waits until there is a task, or for @due ns, unless that is 0. Returns the task or NULL. */
static struct cuda_task *next_task(int64_t due)
{
	int64_t until = now_mono_ns() + due;
	const struct timespec at = { .tv_sec = until / NS_PER_SEC, .tv_nsec = until % NS_PER_SEC };
	struct cuda_task *task = NULL;

	pthread_mutex_lock(&cuda_lock);
	while (!closer.woken && (!due || !deadline_passed(until))) {
		if (due)
			pthread_cond_timedwait(&closer.changed, &cuda_lock, &at);
		else
			pthread_cond_wait(&closer.changed, &cuda_lock);
	}
	if (!list_empty(&closer.tasks)) {
		task = list_first_entry(&closer.tasks, struct cuda_task, link);
		list_del(&task->link);
	}
	closer.woken = !list_empty(&closer.tasks);
	pthread_mutex_unlock(&cuda_lock);
	return task;
}

static void *run(void *arg)
{
	int64_t due = 0;

	(void)arg;
	while (!cuda_is_ending()) {
		struct cuda_task *task = next_task(due);

		if (task)
			task->run(task);
		due = trim_buffers();
	}
	return NULL;
}

int cuda_closer_start(void)
{
	pthread_condattr_t attr;
	int r;

	if (closer.running)
		return 0;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&closer.changed, &attr);
	pthread_condattr_destroy(&attr);
	r = thread_start_detached(run);
	closer.running = !r;
	return r;
}

/* ---- fork() ---- */

void cuda_closer_inherit(void)
{
	closer.running = false;
	closer.woken = false;
	list_move_all(&inherited, &closer.tasks);
}

void cuda_closer_inherited(void)
{
	list_for_each_safe(l, &inherited) {
		struct cuda_task *task = list_entry(l, struct cuda_task, link);

		if (task->child)
			task->child(task);
	}
}
