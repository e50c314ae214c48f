/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs for libuv's workers, which make and destroy the pages of large segments. The workers take
 * jobs in the order in which they get them, so a job waits here until its account's turn comes, and
 * no account has more than half of the workers that can run at once.
 */
#pragma once

#include <uv.h>

#include "daemon/store/account.h"

struct job {
	uv_work_t work;
	struct list link; /* in account->jobs while it waits */
	struct jobs *jobs;
	struct account *account;       /* the daemon's; ref held */
	void (*run)(struct job *job);  /* on a worker: touches nothing but its job */
	void (*done)(struct job *job); /* on the loop's thread; may free the job */
};

struct jobs {
	uv_loop_t *loop;
	struct list accounts; /* of struct account, by employer: they have jobs that wait */
	unsigned share;	      /* workers that one account may have */
	unsigned running;
	unsigned count; /* those that wait included */
};

void jobs_init(struct jobs *jobs, uv_loop_t *loop);
/* @job has run and done. */
void job_queue(struct jobs *jobs, struct job *job, struct account *account);
