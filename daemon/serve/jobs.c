/* SPDX-License-Identifier: Apache-2.0 */
/* Work for worker threads: a queue, and the jobs that destroy and trim memory; see jobs.h. Loop
 * thread only. */
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/jobs.h"
#include "daemon/state/segments.h"
#include "util/log.h"

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
		list_del(&account->employer); /* the other accounts come first now */
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

/* ---- destroying segments --------------------------------------------------------------------- */

struct destroy {
	struct job job;
	struct common *common;
	struct segment *segment;
	const struct storage *storage;
	struct object object;
	int result; /* of storage->discard() */
};

static void destroy_work(struct job *job)
{
	struct destroy *destroy = container_of(job, struct destroy, job);

	destroy->result = destroy->storage->discard(&destroy->object);
}

static void destroy_remains(struct destroy *destroy)
{
	struct segment_store *store = &destroy->common->store;
	struct segment *seg = destroy->segment;

	remnant_new(&store->remnants, &destroy->object, seg->guarded.writer, &seg->entry);
	guard_tell(&store->guard, account_top(seg->charge.account));
}

static void destroy_done(struct destroy *destroy)
{
	struct remnants *remnants = &destroy->common->store.remnants;
	struct segment *seg = destroy->segment;

	remnants_sweep(remnants);
	if (destroy->result < 0) {
		seg->object = destroy->object;
		segment_hold_back(seg);
		segments_changed(seg->segments);
		destroy->common->space_freed++; /* creates need not wait for its space any more */
		return;
	}
	destroy->common->store.emptied++;
	if (destroy->result == OBJECT_E_OPEN)
		destroy_remains(destroy);
	else
		destroy->storage->destroy(&destroy->object);
	if (segment_discarded(seg))
		segments_free(seg);
}

static void destroy_worked(struct job *job)
{
	struct destroy *destroy = container_of(job, struct destroy, job);

	destroy_done(destroy);
	free(destroy);
}

/* Queues a job that destroys the segment: the writer of a named object can keep us from truncating
 * it. False: there is no memory for a job now. */
static bool segment_destroy(struct jobs *jobs, struct common *common, struct segment *seg)
{
	bool here_is_fine = !seg->storage->named;
	struct destroy *destroy = here_is_fine && seg->size <= JOB_INLINE
					  ? NULL
					  : calloc(1, sizeof(*destroy));
	struct destroy here = { .common = common,
				.segment = seg,
				.storage = seg->storage,
				.object = seg->object,
				.job.run = destroy_work,
				.job.done = destroy_worked };

	if (!destroy && !here_is_fine)
		return false;
	seg->object.fd = -1;
	list_del(&seg->link);
	if (destroy) {
		*destroy = here;
		job_queue(jobs, &destroy->job, seg->charge.account);
		return true;
	}
	destroy_work(&here.job);
	destroy_done(&here);
	return true;
}

void destroys_run_due(struct jobs *jobs, struct common *common, uint64_t forgotten, unsigned most)
{
	struct list *to_destroy = &common->store.to_destroy;
	struct segment *seg;

	segments_forgotten(&common->store, forgotten);
	for (; most && !list_empty(to_destroy); most--) {
		seg = list_first_entry(to_destroy, struct segment, link);
		if (!segment_destroy(jobs, common, seg))
			break;
	}
}

/* ---- restoring sizes: by a worker, since clients can keep it waiting ------------------------- */

struct trim {
	struct job job;
	struct guard *guard;
	struct guarded *guarded; /* NULL: the object is not guarded any more */
	struct object object;
	uint64_t size;
	int result;
};

static void trim_work(struct job *job)
{
	struct trim *trim = container_of(job, struct trim, job);

	trim->result = shm_object_trim(&trim->object, trim->size);
}

static void trim_worked(struct job *job)
{
	struct trim *trim = container_of(job, struct trim, job);

	if (trim->guarded)
		guard_trimmed(trim->guard, trim->guarded, !trim->result);
	free(trim);
}

void trims_run_due(struct jobs *jobs, struct common *common, unsigned most)
{
	struct guard *guard = &common->store.guard;
	struct account *account;
	struct trim *trim;

	for (; most && !list_empty(&guard->wrong); most--) {
		trim = calloc(1, sizeof(*trim));
		if (!trim)
			return;
		guard_take_wrong(guard, &trim->guarded);
		trim->object = trim->guarded->object;
		trim->size = trim->guarded->size;
		trim->guard = guard;
		trim->job.run = trim_work;
		trim->job.done = trim_worked;
		account = account_ref(&common->accounts, trim->object.uid);
		if (!account) {
			guard_trimmed(guard, trim->guarded, false);
			free(trim);
			return;
		}
		job_queue(jobs, &trim->job, account);
		account_unref(account);
	}
}

void guard_tell(struct guard *guard, struct account *account)
{
	int error;

	if (guard_missed(guard, &error))
		log_warn_limited(account->log,
				 "the size of a segment is not watched: inotify_add_watch() "
				 "failed; see fs.inotify.max_user_watches",
				 "uid=%u error=%s", account->uid, log_str(strerror(error)));
}
