/* SPDX-License-Identifier: Apache-2.0 */
/* Trims; see trim.h. A worker does them, since clients can keep it waiting. Loop thread only. */
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/trim.h"
#include "util/log.h"

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

void trims_run_due(struct jobs *jobs, struct shared *shared, unsigned most)
{
	struct guard *guard = &shared->store.guard;
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
		account = account_ref(&shared->accounts, trim->object.uid);
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
