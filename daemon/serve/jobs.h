/* SPDX-License-Identifier: Apache-2.0 */
/* Work for libuv's workers: a queue, and the jobs that destroy and trim memory. Workers take jobs
 * in the order in which they get them. So a job waits here for its account's turn, and no account
 * has more than half of the workers that can run at once. */
#pragma once

#include <uv.h>

#include "daemon/state/common.h"
#include "daemon/store/account.h"

/* Bytes: no job is worthwhile for less. */
enum { JOB_INLINE = 256 << 10 };

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
	struct list accounts; /* of struct account, by employer: they have waiting jobs */
	unsigned share;	      /* workers that one account may have */
	unsigned running;
	unsigned count; /* including those that wait */
};

void jobs_init(struct jobs *jobs, uv_loop_t *loop);
/* Queues a job, whose run and done are set. */
void job_queue(struct jobs *jobs, struct job *job, struct account *account);

/* Begins to give the memory of up to @most segments that have ended back to the kernel. @forgotten:
 * what the keeper has forgotten, as of keeper_link_forgotten(). */
void destroys_run_due(struct jobs *jobs, struct common *common, uint64_t forgotten, unsigned most);

/* Begins to set right the sizes of up to @most objects that clients have changed, in jobs of the
 * users that may have changed them. */
void trims_run_due(struct jobs *jobs, struct common *common, unsigned most);
/* Logs if objects of this user could not be watched, so that growing them is not noticed at
 * once. */
void guard_tell(struct guard *guard, struct account *account);
