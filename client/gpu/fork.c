/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/fork.h"
#include "client/gpu/import.h"
#include "client/gpu/pool.h"
#include "client/gpu/publication.h"
#include "client/gpu/session.h"
#include "client/gpu/task.h"
#include "client/gpu/thread.h"

void cuda_before_fork(void)
{
	pthread_mutex_lock(&cuda_lock);
}

void cuda_after_fork_parent(void)
{
	pthread_mutex_unlock(&cuda_lock);
}

/* These are the parent's. Nothing may be done with them, but memory checkers have to find them. */
static struct list inherited_exports = LIST_INIT(inherited_exports);
static struct list inherited_buffers = LIST_INIT(inherited_buffers);
static struct list inherited_imports = LIST_INIT(inherited_imports);

/* The threads that were opening these are not here, and nobody may wait for them. */
static void drop_half_open(struct cuda_session *cs)
{
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++) {
		list_for_each_safe(l, &cs->imports[i]) {
			if (cuda_import_is_open(list_entry(l, struct cuda_import, link)))
				continue;
			list_del(l);
			list_add_tail(&inherited_imports, l);
		}
	}
}

void cuda_after_fork_child(void)
{
	struct cuda_session *cs;

	pthread_cond_init(&cuda_changed, NULL);
	pthread_mutex_init(&cuda_asking, NULL);
	cuda_thread_inherit();
	cuda_tasks_inherit();
	cuda_publications_inherit();
	cuda_pools_inherit();
	list_for_each_entry(cs, &cuda_sessions, link) {
		cs->claims = 0;
		cs->failures = cs->orphaned = 0;
		list_init(&cs->making);
		cs->keeping = 0;
		list_move_all(&inherited_exports, &cs->exports);
		list_move_all(&inherited_buffers, &cs->buffers);
		cs->nbuffers = 0;
		cs->unmapping = 0;
		cs->trims_done = cs->trims_asked;
		drop_half_open(cs);
	}
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_child_releases(void)
{
	cuda_thread_give_up_leases();
	cuda_tasks_inherited();
	cuda_publications_uncount();
	users_check(NULL);
}
