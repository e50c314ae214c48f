/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/event.h"
#include "client/gpu/export.h"
#include "client/gpu/import.h"
#include "client/gpu/mapping.h"
#include "client/gpu/threads.h"

/* ---- Finding, making ---- */

static struct list *bucket(struct cuda_session *cs, uint32_t segment)
{
	return &cs->imports[segment % CUDA_IMPORT_BUCKETS];
}

/* The session's import of that segment, or NULL. Called with cuda_lock. */
static struct cuda_import *import_find(struct cuda_session *cs, uint32_t segment,
				       uint32_t generation)
{
	struct cuda_import *import;

	list_for_each_entry(import, bucket(cs, segment), link)
		if (import->segment == segment && import->generation == generation)
			return import;
	return NULL;
}

/* Adds an import that is not open and has no lease. NULL: no memory. Called with cuda_lock. */
static struct cuda_import *import_add(struct cuda_session *cs, uint32_t segment,
				      uint32_t generation)
{
	struct cuda_import *import = calloc(1, sizeof(*import));

	if (!import)
		return NULL;
	import->session = cs->session;
	import->segment = segment;
	import->generation = generation;
	for (unsigned i = 0; i < CUDA_EVENT_BUCKETS; i++)
		list_init(&import->events[i]);
	list_add_head(bucket(cs, segment), &import->link);
	return import;
}

enum input { IMPORT_OPENED, IMPORT_UNWANTED, INPUTS };

/* The only place that changes a state. Called with cuda_lock. */
static void turn(struct cuda_import *import, enum input input)
{
	/* clang-format off */
	static const enum cuda_import_state next[][INPUTS] = {
		/*			      IMPORT_OPENED,  IMPORT_UNWANTED */
		[IMPORT_OPENING]	  = { IMPORT_OPEN,    IMPORT_OPENING_UNWANTED },
		[IMPORT_OPENING_UNWANTED] = { IMPORT_CLOSING, IMPORT_OPENING_UNWANTED },
		[IMPORT_OPEN]		  = { IMPORT_OPEN,    IMPORT_CLOSING },
		[IMPORT_CLOSING]	  = { IMPORT_CLOSING, IMPORT_CLOSING },
		[IMPORT_LOST]		  = { IMPORT_LOST,    IMPORT_LOST },
	};
	/* clang-format on */

	import->state = next[import->state][input];
}

/* Fills in the import from an export of this process, whose memory the driver cannot open here and
 * need not. False: another process exported it. Called with cuda_lock. */
static bool import_own(struct cuda_import *import)
{
	struct cuda_export *e = cuda_export_here(import->session->catalog.instance, import->segment,
						 import->generation);

	if (!e)
		return false;
	import->export = e;
	import->device = e->memory.device;
	import->base = e->memory.base;
	import->size = e->memory.size;
	import->life = e->life;
	turn(import, IMPORT_OPENED);
	return true;
}

/* True if the segment was exported on this connection, which the daemon counts as a holder then. */
static bool import_is_known(const struct cuda_import *import)
{
	struct cuda_export *e = cuda_export_here(import->session->catalog.instance, import->segment,
						 import->generation);

	return e && e->session == import->session;
}

static void send_unmapped(const struct cuda_import *import)
{
	struct session *s = import->session;
	struct wire_segment_ref m = {
		.header = { .type = WIRE_UNMAPPED, .length = sizeof(m) },
		.segment = import->segment,
		.segment_generation = import->generation,
	};

	session_post(s, &m);
}

/* Tells the daemon that the import is no longer open. If another daemon takes over the session, it
 * finds that in the ledger. */
static void no_more_open(const struct cuda_import *import)
{
	struct session *s = import->session;

	ledger_map_forget(s->ledger, s->catalog.slots, import->segment, import->generation);
	send_unmapped(import);
}

/* Needs no lock, since no other thread touches an import that is not open. Memory that this process
 * exported on another connection is not opened, but the daemon is asked for it, so that it counts
 * this connection as a holder. */
static int import_open(struct cuda_import *import, struct get_until until)
{
	struct wire_export what;
	bool imported = false, own;
	int r;

	pthread_mutex_lock(&cuda_lock);
	own = cuda_export_here(import->session->catalog.instance, import->segment,
			       import->generation);
	pthread_mutex_unlock(&cuda_lock);
	if (own) {
		r = cuda_mapping_ask(import->session, import->segment, import->generation,
				     until.answer, &what);
		if (!r)
			send_unmapped(import);
		return r;
	}
	r = cuda_mapping_get(import->session, import->segment, import->generation, until, &imported,
			     &import->mapping);

	if (!r) {
		import->device = import->mapping->device;
		import->base = import->mapping->base;
		import->size = import->mapping->size;
		import->life = import->mapping->life;
	} else if (imported) {
		no_more_open(import);
	}
	return r;
}

bool cuda_import_is_dead(const struct cuda_import *import)
{
	return import->device && import->life != atomic_load(&import->device->life);
}

static void close_if_unused(struct cuda_import *import);

/* Returns the session's import of that segment, or NULL. An import that ended with its context
 * becomes LOST and does not count. Called with cuda_lock. */
static struct cuda_import *import_alive(struct cuda_session *cs, uint32_t segment,
					uint32_t generation)
{
	struct cuda_import *import = import_find(cs, segment, generation);

	if (!import || !cuda_import_is_open(import) || !cuda_import_is_dead(import))
		return import;
	import->state = IMPORT_LOST;
	list_del(&import->link);
	if (!import->leases)
		close_if_unused(import);
	return NULL;
}

/* Finds an import with @find, and waits while another thread opens it. *@out is NULL if there is
 * none. False: another thread has not opened it by the deadline. Called with cuda_lock. */
static bool find_opened(struct cuda_import *(*find)(struct cuda_session *, uint32_t, uint32_t),
			struct cuda_session *cs, uint32_t segment, uint32_t generation,
			int64_t deadline, struct cuda_import **out)
{
	bool in_time = true;

	while ((*out = find(cs, segment, generation)) && !cuda_import_is_open(*out) && in_time)
		in_time = cuda_wait_changed(deadline);
	return !*out || cuda_import_is_open(*out);
}

/* Finds the open import of that segment and counts a lease on it; or makes a new one, *@is_new,
 * which the caller has to open. Returns 0, or a negative errno. Takes cuda_lock itself. */
static int find_or_add(struct cuda_session *cs, uint32_t segment, uint32_t generation,
		       int64_t deadline, bool *is_new, struct cuda_import **out)
{
	struct cuda_import *import;
	bool in_time;

	*is_new = false;
	pthread_mutex_lock(&cuda_lock);
	in_time = find_opened(import_alive, cs, segment, generation, deadline, &import);
	if (!import) {
		import = import_add(cs, segment, generation);
		*is_new = import && !(import_is_known(import) && import_own(import));
	}
	if (import && in_time && !*is_new)
		import->leases++;
	pthread_mutex_unlock(&cuda_lock);
	*out = import;
	if (!in_time)
		return cuda_opened_late();
	return import ? 0 : tl_fail(-ENOMEM, "no memory to import a segment of a GPU");
}

/* Ends what find_or_add() began. True: the import has its lease. False: it is in no list any more,
 * and the caller frees it. */
static bool opened(struct cuda_import *import, bool ok)
{
	pthread_mutex_lock(&cuda_lock);
	if (ok && import->mapping)
		turn(import, IMPORT_OPENED);
	else if (ok)
		ok = import_own(import);
	if (ok) {
		import->leases++;
	} else {
		list_del(&import->link);
	}
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
	return ok;
}

int cuda_import_get(struct cuda_session *cs, uint32_t segment, uint32_t generation,
		    struct get_until until, struct cuda_import **out)
{
	struct cuda_import *import;
	bool is_new, ended;
	int r;

	do {
		r = find_or_add(cs, segment, generation, until.work, &is_new, &import);
		if (r)
			return r;
		r = is_new ? import_open(import, until) : 0;
		/* If an export of ours has ended meanwhile, try again: the daemon may still have
		 * its memory. */
		ended = is_new && !opened(import, !r) && !r;
		if (r || ended)
			free(import);
	} while (ended);
	if (!r)
		*out = import;
	return r;
}

struct cuda_import *cuda_import_known(struct session *s, uint32_t segment, uint32_t generation)
{
	struct cuda_import *import = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s))
		import = import_alive(cuda_of(s), segment, generation);
	if (import && cuda_import_is_open(import))
		import->leases++;
	else
		import = NULL;
	pthread_mutex_unlock(&cuda_lock);
	return import;
}

/* Other threads that want the segment wait while we ask: if one of them opened it meanwhile, our
 * UNMAPPED would make the daemon forget that it is open. */
int cuda_import_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct wire_export *out)
{
	struct cuda_import *import, *asking = NULL;
	struct cuda_session *cs;
	bool in_time;
	int r;

	r = cuda_session_get(s, &cs);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	in_time = find_opened(import_find, cs, segment, generation, deadline, &import);
	if (!import)
		asking = import_add(cs, segment, generation);
	else if (in_time)
		import->leases++;
	pthread_mutex_unlock(&cuda_lock);
	if (!in_time)
		return cuda_opened_late();
	if (!import && !asking)
		return tl_fail(-ENOMEM, "no memory to import a segment of a GPU");
	r = cuda_mapping_ask(s, segment, generation, deadline, out);
	if (import) {
		cuda_import_put(import);
		return r;
	}
	if (!r)
		no_more_open(asking);
	pthread_mutex_lock(&cuda_lock);
	list_del(&asking->link);
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
	free(asking);
	return r;
}

/* ---- Closing ---- */

/* Closes the import on the slow thread. Tells the daemon so, unless the import was LOST, since
 * another import may have taken its place. */
static void run_closing(struct cuda_task *task)
{
	struct cuda_import *import = container_of(task, struct cuda_import, closing);
	struct cuda_import ended = *import;
	struct cuda_session *cs = cuda_of(ended.session);

	cuda_import_close(import);
	if (ended.state == IMPORT_CLOSING)
		no_more_open(&ended);
	pthread_mutex_lock(&cuda_lock);
	cuda_session_unref(cs);
	pthread_mutex_unlock(&cuda_lock);
}

/*
 * Hands the import to the slow thread if it has to be closed and no lease is left. A session that
 * is ending closes it itself: that end waits on the slow thread until nobody claims the session, so
 * another task there would never run. Nor would it in a forked child, which has no slow thread.
 * Called with cuda_lock.
 */
static void close_if_unused(struct cuda_import *import)
{
	struct cuda_session *cs = cuda_of(import->session);

	if (import->state < IMPORT_CLOSING || import->leases)
		return;
	list_del(&import->link);
	if (cuda_session_is_ending(cs) || !cuda_tasks_served()) {
		list_add_head(bucket(cs, import->segment), &import->link);
		return;
	}
	cuda_session_ref(cs);
	import->closing = (struct cuda_task){ .run = run_closing };
	cuda_task_add(&import->closing);
}

void cuda_import_put(struct cuda_import *import)
{
	bool wake = false;

	pthread_mutex_lock(&cuda_lock);
	if (--import->leases == 0) {
		/* The end of our own export may have waited for this lease. */
		wake = import->export && atomic_load(&import->export->session->ended);
		close_if_unused(import);
	}
	pthread_mutex_unlock(&cuda_lock);
	if (wake)
		cuda_wake();
}

bool cuda_import_unmap(struct cuda_session *cs, uint32_t segment, uint32_t generation)
{
	struct cuda_import *import = import_find(cs, segment, generation);

	if (!import)
		return false;
	turn(import, IMPORT_UNWANTED);
	close_if_unused(import);
	return true;
}

void cuda_imports_unmap_dead(struct cuda_session *cs)
{
	const struct catalog_view *c = &cs->session->catalog;

	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++) {
		list_for_each_safe(l, &cs->imports[i]) {
			struct cuda_import *import = list_entry(l, struct cuda_import, link);

			if (import->segment < c->slots &&
			    atomic_load(&c->segments[import->segment].word) ==
				    live_word(import->generation))
				continue;
			turn(import, IMPORT_UNWANTED);
			close_if_unused(import);
		}
	}
}

/* The session's import of an export of this process, or NULL. Called with cuda_lock. */
static struct cuda_import *import_of(struct cuda_session *cs, const struct cuda_export *e)
{
	if (cs->session->catalog.instance != e->session->catalog.instance)
		return NULL;
	return import_find(cs, e->segment, e->generation);
}

bool cuda_imports_leased(const struct cuda_export *e)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link) {
		struct cuda_import *import = import_of(cs, e);

		if (import && import->leases)
			return true;
	}
	return false;
}

void cuda_imports_forget(const struct cuda_export *e)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link) {
		struct cuda_import *import = import_of(cs, e);

		if (!import || import->export != e)
			continue; /* it was opened like memory of another process */
		import->state = IMPORT_LOST;
		import->export = NULL;
		list_del(&import->link);
		if (!import->leases)
			free(import); /* of our own export: it has no mapping and no events */
	}
}

void cuda_import_close(struct cuda_import *import)
{
	for (unsigned i = 0; i < CUDA_EVENT_BUCKETS; i++)
		cuda_events_destroy(import->device, &import->events[i]);
	if (import->mapping)
		cuda_mapping_put(import->mapping);
	free(import);
}

/* ---- Events ---- */

static struct list *event_bucket(struct cuda_import *import, const unsigned char handle[64])
{
	uint64_t hash = 0, word;

	for (size_t i = 0; i < 64; i += sizeof(word)) {
		memcpy(&word, handle + i, sizeof(word));
		hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
	}
	return &import->events[hash >> 32 & (CUDA_EVENT_BUCKETS - 1)];
}

/* Finds and pins the import's event with that handle. NULL: it is not open. Called with cuda_lock.
 */
static struct cuda_event *event_find(struct cuda_import *import, const unsigned char handle[64])
{
	struct cuda_event *event;

	list_for_each_entry(event, event_bucket(import, handle), link) {
		if (memcmp(event->handle.bytes, handle, sizeof(event->handle.bytes)) != 0)
			continue;
		event->pins++;
		list_del(&event->link);
		list_add_head(event_bucket(import, handle), &event->link);
		return event;
	}
	return NULL;
}

/* Keeps @event. Another thread may have opened the same event meanwhile: both stay. Returns another
 * event, which has to be closed in its place, or NULL. */
static struct cuda_event *event_keep(struct cuda_import *import, struct cuda_event *event)
{
	struct list *bucket_of = event_bucket(import, event->handle.bytes);
	struct cuda_event *other, *goes = NULL;
	unsigned n = 0;

	pthread_mutex_lock(&cuda_lock);
	event->pins = 1;
	list_add_head(bucket_of, &event->link);
	list_for_each_entry(other, bucket_of, link)
		if (++n > CUDA_EVENTS_OPEN && !other->pins)
			goes = other;
	if (goes)
		list_del(&goes->link);
	pthread_mutex_unlock(&cuda_lock);
	return goes;
}

int cuda_import_event(struct cuda_import *import, const struct cuda_scope *scope,
		      const unsigned char handle[64], struct cuda_event **out)
{
	struct cuda_event *event, *goes;
	CUresult e;

	pthread_mutex_lock(&cuda_lock);
	*out = event_find(import, handle);
	pthread_mutex_unlock(&cuda_lock);
	if (*out)
		return 0;
	event = cuda_event_alloc(import->device);
	if (!event)
		return tl_fail(-ENOMEM, "no memory for an event");
	memcpy(event->handle.bytes, handle, sizeof(event->handle.bytes));
	e = scope->driver->ipc_open_event_handle(&event->event, event->handle);
	if (e) {
		free(event);
		return cuda_fail(e, "opening the event of the tensor's producer");
	}
	goes = event_keep(import, event);
	if (goes && !cuda_event_is_dead(goes))
		scope->driver->event_destroy(goes->event);
	free(goes);
	*out = event;
	return 0;
}
