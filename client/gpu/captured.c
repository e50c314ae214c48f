/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/captured.h"
#include "client/gpu/lock.h"
#include "client/gpu/task.h"
#include "util/cancel.h"
#include "util/clock.h"

#define LOOK_NS (10 * NS_PER_MS)

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
	nap(LOOK_NS);
	pthread_mutex_lock(&cuda_lock);
	list_move_all(&looked, &waiting);
	pthread_mutex_unlock(&cuda_lock);
	while ((captured = take_first(&looked)))
		if (!captured->mark(captured))
			cuda_captured_wait(captured);
}
