/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "client/gpu/finish.h"
#include "client/gpu/opening.h"
#include "client/gpu/pluggable.h"
#include "client/gpu/session.h"
#include "client/gpu/thread.h"

/* An export that a publisher is making; on its stack. */
struct making {
	struct list link;
	const struct cuda_memory *memory;
};

/* Is another publisher making an export of that memory? Called with cuda_lock. */
static bool is_made(struct cuda_session *cs, const struct cuda_memory *memory)
{
	struct making *m;

	list_for_each_entry(m, &cs->making, link)
		if (cuda_same_memory(m->memory, memory))
			return true;
	return false;
}

/*
 * Is another publisher, in any session, exporting that pool for the first time? Consumers know a
 * pool again only by descriptors that were made from one (cuda_export_pool_fd()). Called with
 * cuda_lock.
 */
static bool pool_is_made(CUmemoryPool pool)
{
	struct cuda_session *cs;
	struct making *m;

	if (!pool || cuda_export_has_pool(pool))
		return false;
	list_for_each_entry(cs, &cuda_sessions, link)
		list_for_each_entry(m, &cs->making, link)
			if (m->memory->pool == pool)
				return true;
	return false;
}

/*
 * Puts @p into the session's export of that memory. False: there is none, and the caller has to
 * make it and call opening_made(); nobody else makes one meanwhile, since consumers would open
 * the memory twice. An export that is ending is in no list any more and is not found.
 */
static bool opening_join(struct cuda_session *cs, struct making *m, struct cuda_publication *p)
{
	struct cuda_export *e;

	pthread_mutex_lock(&cuda_lock);
	while (!(e = cuda_export_find(cs, m->memory)) &&
	       (is_made(cs, m->memory) || pool_is_made(m->memory->pool)))
		cuda_wait_changed(DEADLINE_NEVER);
	if (e)
		cuda_publication_link(e, p);
	else
		list_add_tail(&cs->making, &m->link);
	pthread_mutex_unlock(&cuda_lock);
	return e != NULL;
}

/* Ends what opening_join() began; @e is NULL if it could not be made. */
static void opening_made(struct cuda_session *cs, struct making *m, struct cuda_export *e,
			 struct cuda_publication *p)
{
	pthread_mutex_lock(&cuda_lock);
	if (e) {
		e->stays = cuda_pluggable_has(&e->memory);
		cuda_publication_link(e, p);
		list_add_head(&cs->exports, &e->link);
	}
	list_del(&m->link);
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_publication_for(struct session *s, struct cuda_opening *o, struct cuda_publication **out)
{
	struct cuda_publication *p;
	struct cuda_session *cs;
	struct making making = { .memory = o->memory };
	struct cuda_export *e = NULL;
	int r;

	r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	p = cuda_publication_new(s);
	if (!p)
		return -ENOMEM;
	*out = p;
	if (opening_join(cs, &making, p))
		return 0;
	r = o->open ? o->open(o) : 0;
	if (!r && o->memory->kind == SEGMENT_CUDA_VMM)
		r = cuda_finish_at_exit();
	if (!r)
		r = cuda_export_new(&e, s, o->memory, o->parts);
	opening_made(cs, &making, e, p);
	if (r)
		cuda_publication_done(p);
	return r;
}
