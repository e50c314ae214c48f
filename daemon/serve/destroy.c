/* SPDX-License-Identifier: Apache-2.0 */
/* Destroys; see destroy.h. Loop thread only. */
#include <stdlib.h>

#include "daemon/serve/destroy.h"
#include "daemon/serve/trim.h"
#include "daemon/state/segments.h"

struct destroy {
	struct job job;
	struct shared *shared;
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
	struct segment_store *store = &destroy->shared->store;
	struct segment *seg = destroy->segment;

	remnant_new(&store->remnants, &destroy->object, seg->guarded.writer, &seg->entry);
	guard_tell(&store->guard, account_top(seg->charge.account));
}

static void destroy_done(struct destroy *destroy)
{
	struct remnants *remnants = &destroy->shared->store.remnants;
	struct segment *seg = destroy->segment;

	remnants_sweep(remnants);
	if (destroy->result < 0) {
		seg->object = destroy->object;
		segment_hold_back(seg);
		memory_changed(seg->memory);
		destroy->shared->space_freed++; /* creates need not wait for it any more */
		return;
	}
	destroy->shared->store.emptied++;
	if (destroy->result == OBJECT_E_OPEN)
		destroy_remains(destroy);
	else
		destroy->storage->destroy(&destroy->object);
	if (segment_discarded(seg))
		memory_free(seg);
}

static void destroy_worked(struct job *job)
{
	struct destroy *destroy = container_of(job, struct destroy, job);

	destroy_done(destroy);
	free(destroy);
}

/* The writer of a named object can keep us from truncating it, so a worker does that. False: there
 * is no memory for that now. */
static bool segment_destroy(struct jobs *jobs, struct shared *shared, struct segment *seg)
{
	bool here_is_fine = !seg->storage->named;
	struct destroy *destroy = here_is_fine && seg->size <= JOB_INLINE
					  ? NULL
					  : calloc(1, sizeof(*destroy));
	struct destroy here = { .shared = shared,
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

void destroys_run_due(struct jobs *jobs, struct shared *shared, uint64_t forgotten, unsigned most)
{
	struct list *to_destroy = &shared->store.to_destroy;
	struct segment *seg;

	segments_forgotten(&shared->store, forgotten);
	for (; most && !list_empty(to_destroy); most--) {
		seg = list_first_entry(to_destroy, struct segment, link);
		if (!segment_destroy(jobs, shared, seg))
			break;
	}
}
