/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The closer: a thread of its own for calls of the driver that close memory. They may wait until
 * the device has done what is queued there, and that work may wait for another process, which may
 * wait for a lease of this one. So no thread that others wait for makes them: neither the library's
 * thread nor one that releases or closes something.
 */
#pragma once

#include "util/list.h"

struct cuda_task {
	struct list link;
	void (*run)(struct cuda_task *task);   /* may free it */
	void (*child)(struct cuda_task *task); /* instead, in a child forked before; may be NULL */
};

/* ---- The caller has cuda_lock ---- */

/* Starts the closer if need be. 0, or a negative errno. */
int cuda_closer_start(void);
bool cuda_closer_runs(void);
void cuda_closer_add(struct cuda_task *task);
/* A draft buffer was put back, and will be given back to the driver later. */
void cuda_closer_wake(void);

/* In a forked child, first under the lock, then without any. */
void cuda_closer_inherit(void);
void cuda_closer_inherited(void);
