/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that are left to the closer (closer.h): calls of the driver that close memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

struct cuda_task {
	struct list link;
	void (*run)(struct cuda_task *task);   /* may free it */
	void (*child)(struct cuda_task *task); /* instead, in a child forked before; may be NULL */
};

/* ---- The caller has cuda_lock ---- */

void cuda_task_add(struct cuda_task *task);
/* A draft buffer was put back, and will be given back to the driver later. */
void cuda_tasks_wake(void);
/* Is there a closer, so that tasks will be done? */
bool cuda_tasks_served(void);

/* ---- For the closer ---- */

/* Before it starts, and when it has; cuda_lock. */
void cuda_tasks_prepare(void);
void cuda_tasks_serve(void);
/* Waits until there is a task, or for @due ns, unless that is 0. Returns the task or NULL. */
struct cuda_task *cuda_task_next(int64_t due);

/* In a forked child, which has no closer: first under the lock, then without any. */
void cuda_tasks_inherit(void);
void cuda_tasks_inherited(void);
