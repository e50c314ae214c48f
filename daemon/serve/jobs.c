/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs; see jobs.h. Loop thread only. */
#include "daemon/serve/jobs.h"

enum { WORKERS = 4 }; /* as many as libuv starts */

/*
 * Half of the workers that can run at once. Making pages keeps a processor busy all the time. So on
 * two processors, two workers of one account would leave none for the loop and other users'
 * clients.
 */
static unsigned share_of_workers(void)
{
	unsigned n = uv_available_parallelism();

	n = (n < WORKERS ? n : WORKERS) / 2;
	return n ? n : 1;
}

static void jobs_start(struct jobs *jobs);

static void job_work(uv_work_t *work)
{
	struct job *job = container_of(work, struct job, work);

	job->run(job);
}

static void job_worked(uv_work_t *work, int status)
{
	struct job *job = container_of(work, struct job, work);
	struct account *account = job->account;
	struct jobs *jobs = job->jobs;

	(void)status; /* jobs are never cancelled */
	account->jobs_running--;
	jobs->running--;
	jobs->count--;
	job->done(job);
	account_unref(account);
	jobs_start(jobs);
}

/* The first account that may have one more worker. */
static struct account *jobs_next(struct jobs *jobs)
{
	struct account *account;

	list_for_each_entry(account, &jobs->accounts, employer) {
		if (account->jobs_running < jobs->share)
			return account;
	}
	return NULL;
}

static void jobs_start(struct jobs *jobs)
{
	struct account *account;
	struct job *job;

	while (jobs->running < WORKERS && (account = jobs_next(jobs))) {
		job = list_first_entry(&account->jobs, struct job, link);
		list_del(&job->link);
		list_del(&account->employer); /* the others come first now */
		if (!list_empty(&account->jobs))
			list_add_tail(&jobs->accounts, &account->employer);
		account->jobs_running++;
		jobs->running++;
		/* it fails only if called wrongly */
		uv_queue_work(jobs->loop, &job->work, job_work, job_worked);
	}
}

void jobs_init(struct jobs *jobs, uv_loop_t *loop)
{
	*jobs = (struct jobs){ .loop = loop, .share = share_of_workers() };
	list_init(&jobs->accounts);
}

void job_queue(struct jobs *jobs, struct job *job, struct account *account)
{
	account = account_top(account);
	account->refs++;
	job->account = account;
	job->jobs = jobs;
	jobs->count++;
	list_add_tail(&account->jobs, &job->link);
	if (list_empty(&account->employer))
		list_add_tail(&jobs->accounts, &account->employer);
	jobs_start(jobs);
}
