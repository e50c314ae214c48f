/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that use GPUs: their begin and end, messages of the daemon to them, and fork(). */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/cuda/buffer.h"
#include "client/cuda/export.h"
#include "client/cuda/import.h"
#include "client/cuda/publication.h"
#include "client/cuda/queue.h"
#include "client/cuda/session.h"
#include "client/cuda/thread.h"
#include "client/error.h"
#include "client/session/client.h"
#include "client/session/request.h"

struct list cuda_sessions = LIST_INIT(cuda_sessions);

/* ---- Sessions ---- */

/* Called with cuda_lock. */
static struct cuda_session *session_add(struct session *s)
{
	struct cuda_session *cs = calloc(1, sizeof(*cs));

	if (!cs)
		return NULL;
	cs->session = s;
	list_init(&cs->exports);
	list_init(&cs->making);
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++)
		list_init(&cs->imports[i]);
	list_init(&cs->buffers);
	list_add_tail(&cuda_sessions, &cs->link);
	s->of_kind[KIND_DEVICE] = cs;
	cuda_wake(); /* its socket is to be read from now on */
	return cs;
}

int cuda_session_get(struct session *s, struct cuda_session **out)
{
	int r = 0;

	pthread_mutex_lock(&cuda_lock);
	if (!cuda_of(s) && !session_add(s))
		r = -ENOMEM;
	*out = cuda_of(s);
	pthread_mutex_unlock(&cuda_lock);
	return r ? tl_fail(r, "no memory to look after GPU tensors") : 0;
}

int cuda_session_with_thread(struct session *s, struct cuda_session **out)
{
	int r = cuda_thread_start();

	return r ? tl_fail(r, "no thread to look after GPU tensors: %s", strerror(-r))
		 : cuda_session_get(s, out);
}

/* ---- What the daemon says ---- */

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

	pthread_mutex_lock(&cuda_lock);
	if (!cuda_of(s) ||
	    !cuda_import_unmap(cuda_of(s), unmap->segment, unmap->segment_generation)) {
		/* The answer to an IMPORT came when nobody waited for it: nothing is open. */
		not_open = *unmap;
		not_open.header.type = WIRE_UNMAPPED;
		conn_send(s->socket, &not_open, -1, MSG_DONTWAIT);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* The daemon had no room for the file of a device: it is given it again with the next export. */
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

/* The dead daemon may not have got round to saying UNMAP. */
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

/* ---- The end ---- */

/* Nobody else finds the session any more. */
static void end_session(struct cuda_session *cs)
{
	struct session *s = cs->session;

	pthread_mutex_lock(&cuda_lock);
	while (cs->claims)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	pthread_mutex_unlock(&cuda_lock);
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++) {
		list_for_each_safe(l, &cs->imports[i]) {
			list_del(l);
			cuda_import_close(list_entry(l, struct cuda_import, link));
		}
	}
	cuda_buffers_end(cs);
	s->of_kind[KIND_DEVICE] = NULL;
	free(cs);
}

static void run_ending(struct cuda_task *task)
{
	struct cuda_session *cs = container_of(task, struct cuda_session, ending);
	struct session *s = cs->session;

	end_session(cs);
	client_session_ended(s);
}

/* In a forked child the session ends; what it had on GPUs is the parent's. */
static void inherit_ending(struct cuda_task *task)
{
	client_session_ended(container_of(task, struct cuda_session, ending)->session);
}

static bool has_something_open(const struct cuda_session *cs)
{
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++)
		if (!list_empty(&cs->imports[i]))
			return true;
	return cs->claims || !list_empty(&cs->buffers);
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

/* ---- fork() ---- */

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
	cuda_thread_inherit();
	cuda_tasks_inherit();
	cuda_publications_inherit();
	list_for_each_entry(cs, &cuda_sessions, link) {
		cs->claims = 0;
		cs->failures = cs->abandoned = 0;
		list_init(&cs->making);
		list_move_all(&inherited_exports, &cs->exports);
		list_move_all(&inherited_buffers, &cs->buffers);
		cs->nbuffers = 0;
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
