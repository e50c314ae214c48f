/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "client/gpu/lock.h"
#include "client/gpu/task.h"
#include "util/clock.h"

/* Under cuda_lock. */
static struct {
	struct list list; /* struct cuda_task */
	pthread_cond_t changed;
	bool served;
	bool woken;
} tasks = { .list = LIST_INIT(tasks.list) };

static struct list inherited = LIST_INIT(inherited); /* the parent's tasks */

void cuda_tasks_wake(void)
{
	tasks.woken = true;
	if (tasks.served)
		pthread_cond_signal(&tasks.changed);
}

void cuda_task_add(struct cuda_task *task)
{
	list_add_tail(&tasks.list, &task->link);
	cuda_tasks_wake();
}

bool cuda_tasks_served(void)
{
	return tasks.served;
}

/* ---- The closer ---- */

void cuda_tasks_prepare(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&tasks.changed, &attr);
	pthread_condattr_destroy(&attr);
}

void cuda_tasks_serve(void)
{
	tasks.served = true;
}

struct cuda_task *cuda_task_next(int64_t due)
{
	int64_t until = now_mono_ns() + due;
	const struct timespec at = { .tv_sec = until / NS_PER_SEC, .tv_nsec = until % NS_PER_SEC };
	struct cuda_task *task = NULL;

	pthread_mutex_lock(&cuda_lock);
	while (!tasks.woken && (!due || !deadline_passed(until))) {
		if (due)
			pthread_cond_timedwait(&tasks.changed, &cuda_lock, &at);
		else
			pthread_cond_wait(&tasks.changed, &cuda_lock);
	}
	if (!list_empty(&tasks.list)) {
		task = list_first_entry(&tasks.list, struct cuda_task, link);
		list_del(&task->link);
	}
	tasks.woken = !list_empty(&tasks.list);
	pthread_mutex_unlock(&cuda_lock);
	return task;
}

/* ---- fork() ---- */

void cuda_tasks_inherit(void)
{
	tasks.served = false;
	tasks.woken = false;
	list_move_all(&inherited, &tasks.list);
}

void cuda_tasks_inherited(void)
{
	list_for_each_safe(l, &inherited) {
		struct cuda_task *task = list_entry(l, struct cuda_task, link);

		if (task->child)
			task->child(task);
	}
}
