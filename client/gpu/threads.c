/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of all GPU state, and the work that is left to the two GPU threads. */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/gpu/threads.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/fd.h"

struct cuda_queues cuda_queues = {
	.leases = LIST_INIT(cuda_queues.leases),
	.publications = LIST_INIT(cuda_queues.publications),
};

static _Atomic int wake = -1; /* eventfd */

void cuda_queue_add(struct list *queue, struct list *link)
{
	list_del(link);
	list_add_tail(queue, link);
	cuda_wake();
}

void cuda_wake(void)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	int fd = atomic_load(&wake);
	uint64_t one = 1;
	int saved = errno;

	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		errno = saved; /* the eventfd is full: the thread is awake */
}

int cuda_wake_open(void)
{
	int fd = fd_raise(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

	atomic_store(&wake, fd);
	return fd < 0 ? -errno : 0;
}

void cuda_wake_close(void)
{
	atomic_store(&wake, fd_close(wake));
}

int cuda_wake_peek(void)
{
	return atomic_load(&wake);
}

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t cuda_asking = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed = PTHREAD_COND_INITIALIZER;

bool cuda_wait_changed(int64_t deadline)
{
	const struct timespec at = { .tv_sec = deadline / NS_PER_SEC,
				     .tv_nsec = deadline % NS_PER_SEC };
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	if (deadline == DEADLINE_NEVER)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	else if (deadline_passed(deadline))
		return false;
	else
		pthread_cond_clockwait(&cuda_changed, &cuda_lock, CLOCK_MONOTONIC, &at);
	return true;
}

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

/* ---- The slow thread ---- */

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

#define POLL_NS (10 * NS_PER_MS)

static struct list waiting = LIST_INIT(waiting); /* struct cuda_captured; cuda_lock */

static void look_at_all(struct cuda_task *task);

static struct cuda_task look = { .run = look_at_all };

void cuda_captured_wait(struct cuda_captured *captured)
{
	pthread_mutex_lock(&cuda_lock);
	if (list_empty(&waiting))
		cuda_task_add(&look);
	list_add_tail(&waiting, &captured->link);
	pthread_mutex_unlock(&cuda_lock);
}

static struct cuda_captured *take_first(struct list *of)
{
	struct cuda_captured *captured = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (!list_empty(of)) {
		captured = list_first_entry(of, struct cuda_captured, link);
		list_del(&captured->link);
	}
	pthread_mutex_unlock(&cuda_lock);
	return captured;
}

static void look_at_all(struct cuda_task *task)
{
	struct list looked = LIST_INIT(looked);
	struct cuda_captured *captured;

	(void)task;
	nap(POLL_NS);
	pthread_mutex_lock(&cuda_lock);
	list_move_all(&looked, &waiting);
	pthread_mutex_unlock(&cuda_lock);
	while ((captured = take_first(&looked)))
		if (!captured->mark(captured))
			cuda_captured_wait(captured);
}
