/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs as a kind of memory: their table of operations, the daemon's messages, the end of a session,
 * and fork().
 */
#include <stdlib.h>

#include "client/connection/client.h"
#include "client/connection/request.h"
#include "client/gpu/buffer.h"
#include "client/gpu/device.h"
#include "client/gpu/export.h"
#include "client/gpu/gpu.h"
#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/pool.h"
#include "client/gpu/publication.h"
#include "client/gpu/publish.h"
#include "client/gpu/session.h"
#include "client/gpu/threads.h"

const struct memory_kind cuda_kind = {
	.device = kDLCUDA,
	.lease = cuda_lease_new,
	.lease_known = cuda_lease_known,
	.lease_delete = cuda_lease_delete,
	.lease_again = cuda_lease_again,
	.ordinal = cuda_ordinal,
	.create = cuda_create,
	.put = cuda_put,
	.publish = cuda_publish,
	.second_name = cuda_second_name,
	.keeps_strides = true,
	.draft_written = cuda_draft_written,
	.draft_fill = cuda_draft_fill,
	.draft_stream = cuda_draft_stream,
	.draft_commit = cuda_draft_commit,
	.draft_abort = cuda_draft_end,
	.draft_close = cuda_draft_close,
	.drafts_left = cuda_drafts_left,
	.draft_end = cuda_draft_end,
	.members_allocate = cuda_members_allocate,
	.members_copy = cuda_members_copy,
	.members_place = cuda_members_place,
	.member_message = cuda_member_message,
	.member_made = cuda_member_made,
	.members_asked = cuda_members_asked,
	.members_end = cuda_members_end,
	.messages = {
		[KIND_UNSOLICITED] = {
			[WIRE_FREED - WIRE_WELCOME] = cuda_take_freed,
			[WIRE_UNMAP - WIRE_WELCOME] = cuda_take_unmap,
		},
		[KIND_LATE] = {
			[WIRE_EXPORTED - WIRE_WELCOME] = cuda_late_export,
			[WIRE_PLACED - WIRE_WELCOME] = cuda_late_answer,
			[WIRE_DONE - WIRE_WELCOME] = cuda_late_answer,
			[WIRE_ERROR - WIRE_WELCOME] = cuda_late_answer,
		},
	},
	.wake = cuda_wake,
	.session_adopted = cuda_session_adopted,
	.session_finish = cuda_finish,
	.session_end = cuda_session_end,
	.fork_before = cuda_before_fork,
	.fork_parent = cuda_after_fork_parent,
	.fork_child = cuda_after_fork_child,
	.fork_child_unlocked = cuda_child_releases,
};

void cuda_take_freed(struct session *s, const struct conn_message *m)
{
	const struct wire_freed *freed = (const void *)m->bytes;

	pthread_mutex_lock(&cuda_lock);
	cuda_publication_freed(s, freed->cookie);
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_take_unmap(struct session *s, const struct conn_message *m)
{
	const struct wire_segment_ref *unmap = (const void *)m->bytes;
	struct wire_segment_ref not_open;
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	if (cs && cuda_session_is_ending(cs)) {
		/* The session is being closed. The end of the connection will say that nothing is
		 * open. */
	} else if (!cs || !cuda_import_unmap(cs, unmap->segment, unmap->segment_generation)) {
		/* An IMPORT was answered after its caller had given up: nothing is open. */
		not_open = *unmap;
		not_open.header.type = WIRE_UNMAPPED;
		session_post_locked(s, &not_open);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* The daemon had no space for the file of a device: the next export sends the file again. */
static void keep_refused(struct cuda_session *cs, uint32_t serial)
{
	for (unsigned i = 0; i < CUDA_DEVICES_MAX; i++)
		if (cs->kept[i] == serial)
			cs->kept[i] = 0;
}

void cuda_late_answer(struct session *s, const struct conn_message *m)
{
	const struct wire_placed *placed = (const void *)m->bytes;
	uint64_t ref = m->header.type == WIRE_PLACED ? placed->ref : 0;
	bool published = m->header.type != WIRE_ERROR;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s)) {
		if (!published)
			keep_refused(cuda_of(s), m->header.serial);
		cuda_publication_answered(cuda_of(s), m->header.serial, published, ref);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* Does what UNMAPs ask for that the former daemon may not have sent before it died. */
bool cuda_session_adopted(struct session *s)
{
	struct cuda_session *cs;
	bool goes_on;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	goes_on = !cs || !cs->produces;
	if (cs && goes_on)
		cuda_imports_unmap_dead(cs);
	pthread_mutex_unlock(&cuda_lock);
	return goes_on;
}

static struct cuda_import *take_import(struct cuda_session *cs)
{
	struct cuda_import *import = NULL;

	pthread_mutex_lock(&cuda_lock);
	for (unsigned i = 0; !import && i < CUDA_IMPORT_BUCKETS; i++)
		if (!list_empty(&cs->imports[i]))
			import = list_first_entry(&cs->imports[i], struct cuda_import, link);
	if (import)
		list_del(&import->link);
	pthread_mutex_unlock(&cuda_lock);
	return import;
}

/* No call and no claim finds the session any more. But the outbox's thread may still run, and
 * handle messages that use what is left of the session. */
static void end_session(struct cuda_session *cs)
{
	struct cuda_import *import;

	pthread_mutex_lock(&cuda_lock);
	while (cs->refs)
		cuda_wait_changed(DEADLINE_NEVER);
	pthread_mutex_unlock(&cuda_lock);
	while ((import = take_import(cs)))
		cuda_import_close(import);
	cuda_buffers_end(cs);
	cuda_pluggable_leave(cs);
	pthread_mutex_lock(&cuda_lock);
	cs->session->of_kind[KIND_DEVICE] = NULL;
	pthread_mutex_unlock(&cuda_lock);
	free(cs);
}

static void run_ending(struct cuda_task *task)
{
	struct cuda_session *cs = container_of(task, struct cuda_session, ending);
	struct session *s = cs->session;

	end_session(cs);
	client_session_ended(s);
}

/* In a forked child the session ends without freeing its GPU part, which is the parent's. */
static void inherit_ending(struct cuda_task *task)
{
	client_session_ended(container_of(task, struct cuda_session, ending)->session);
}

static bool has_something_open(const struct cuda_session *cs)
{
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++)
		if (!list_empty(&cs->imports[i]))
			return true;
	return cs->refs || !list_empty(&cs->buffers);
}

bool cuda_session_end(struct session *s)
{
	struct cuda_session *cs;
	bool later = false;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	if (cs) {
		list_del(&cs->link);
		later = cuda_tasks_served() && has_something_open(cs);
		cs->ending = (struct cuda_task){ .run = run_ending, .child = inherit_ending };
		if (later)
			cuda_task_add(&cs->ending);
	}
	pthread_mutex_unlock(&cuda_lock);
	if (cs && !later)
		end_session(cs);
	return later;
}

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

/* Drops imports that threads of the parent were opening: those threads do not exist here, so nobody
 * may wait for them. */
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
		cs->refs = 0;
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
	use_count_check(NULL);
}
