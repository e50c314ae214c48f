/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "client/gpu/buffer.h"
#include "client/gpu/session.h"
#include "client/gpu/threads.h"
#include "util/thread.h"

/* ---- Draft buffers ---- */

/* Drops the reference to @cs, and takes one to the next session that has free buffers, or to the
 * first if @cs is NULL. If @cs has ended meanwhile it is in no list, and the walk begins again at
 * the first. */
static struct cuda_session *next_with_buffers(struct cuda_session *cs)
{
	struct cuda_session *found = NULL;
	struct list *l;

	pthread_mutex_lock(&cuda_lock);
	l = cs && !list_empty(&cs->link) ? cs->link.next : cuda_sessions.next;
	for (; l != &cuda_sessions && !found; l = l->next) {
		struct cuda_session *next = list_entry(l, struct cuda_session, link);

		if (!list_empty(&next->buffers) || next->trims_asked != next->trims_done)
			found = next;
	}
	if (found)
		cuda_session_ref(found);
	if (cs)
		cuda_session_unref(cs);
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

/* Gives back buffers that have been free for long. Returns the ns until the next one is due, or
 * 0. */
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

static void *run(void *arg)
{
	int64_t due = 0;

	(void)arg;
	while (!cuda_is_ending()) {
		struct cuda_task *task = cuda_task_next(due);

		if (task)
			task->run(task);
		due = trim_buffers();
	}
	return NULL;
}

int cuda_slow_thread_start(void)
{
	int r;

	if (cuda_tasks_served())
		return 0;
	cuda_tasks_prepare();
	r = thread_start_detached(run);
	if (!r)
		cuda_tasks_serve();
	return r;
}
