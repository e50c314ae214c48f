/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/event.h"
#include "client/cuda/export.h"
#include "client/cuda/import.h"
#include "client/cuda/mapping.h"
#include "client/cuda/thread.h"
#include "client/error.h"
#include "client/session/client.h"
#include "client/session/request.h"

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

/* A new one, which is not open and has no lease. Called with cuda_lock. */
static struct cuda_import *import_add(struct cuda_session *cs, uint32_t segment,
				      uint32_t generation)
{
	struct cuda_import *import = calloc(1, sizeof(*import));

	if (!import)
		return NULL;
	import->session = cs->session;
	import->segment = segment;
	import->generation = generation;
	list_init(&import->queue_link);
	list_init(&import->events);
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
	};
	/* clang-format on */

	import->state = next[import->state][input];
}

/* Memory that this process exported itself cannot be opened, and need not be: false if it is
 * others'. Called with cuda_lock. */
static bool import_own(struct cuda_import *import)
{
	struct cuda_export *e = cuda_export_here(import->session->catalog.instance, import->segment,
						 import->generation);

	if (!e)
		return false;
	import->export = e;
	import->device = e->memory.device;
	import->base = e->memory.base;
	turn(import, IMPORT_OPENED);
	return true;
}

static void send_unmapped(const struct cuda_import *import)
{
	struct session *s = import->session;
	struct wire_segment_ref m = {
		.header = { .type = WIRE_UNMAPPED, .length = sizeof(m) },
		.segment = import->segment,
		.segment_generation = import->generation,
	};

	session_send(s, &m, session_deadline(s));
}

/* Needs no lock: nobody else touches an import that is not open. */
static int import_open(struct cuda_import *import, int64_t deadline)
{
	bool imported = false;
	int r = cuda_mapping_get(import->session, import->segment, import->generation, deadline,
				 &imported, &import->mapping);

	if (!r) {
		import->device = import->mapping->device;
		import->base = import->mapping->base;
	} else if (imported) {
		send_unmapped(import);
	}
	return r;
}

/*
 * The open import of that segment, with a lease counted on it; or a new one, *is_new, that the
 * caller has to open. NULL: no memory. Does not have the lock when it returns.
 */
static struct cuda_import *find_or_add(struct cuda_session *cs, uint32_t segment,
				       uint32_t generation, bool *is_new)
{
	struct cuda_import *import;

	*is_new = false;
	pthread_mutex_lock(&cuda_lock);
	while ((import = import_find(cs, segment, generation)) && !cuda_import_is_open(import))
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (!import) {
		import = import_add(cs, segment, generation);
		*is_new = import && !import_own(import);
	}
	if (import && !*is_new)
		import->leases++;
	pthread_mutex_unlock(&cuda_lock);
	return import;
}

/* Ends what find_or_add() began: the import has its lease, or is in no list any more. */
static void opened(struct cuda_import *import, bool ok)
{
	pthread_mutex_lock(&cuda_lock);
	if (ok) {
		turn(import, IMPORT_OPENED);
		import->leases++;
	} else {
		list_del(&import->link);
	}
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_import_get(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct cuda_import **out)
{
	struct cuda_import *import;
	struct cuda_session *cs;
	bool is_new;
	int r;

	r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	import = find_or_add(cs, segment, generation, &is_new);
	if (!import)
		return tl_fail(-ENOMEM, "no memory to import a segment of a GPU");
	if (is_new) {
		r = import_open(import, deadline);
		opened(import, !r);
	}
	if (r)
		free(import);
	else
		*out = import;
	return r;
}

struct cuda_import *cuda_import_known(struct session *s, uint32_t segment, uint32_t generation)
{
	struct cuda_import *import = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s))
		import = import_find(cuda_of(s), segment, generation);
	if (import && cuda_import_is_open(import))
		import->leases++;
	else
		import = NULL;
	pthread_mutex_unlock(&cuda_lock);
	return import;
}

/* Others who want the segment wait while we ask: if they opened it meanwhile, our UNMAPPED would
 * unsay that. */
int cuda_import_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct wire_export *out)
{
	struct cuda_import *import, *asking = NULL;
	struct cuda_session *cs;
	int r;

	r = cuda_session_get(s, &cs);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	while ((import = import_find(cs, segment, generation)) && !cuda_import_is_open(import))
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (import)
		import->leases++;
	else
		asking = import_add(cs, segment, generation);
	pthread_mutex_unlock(&cuda_lock);
	if (!import && !asking)
		return tl_fail(-ENOMEM, "no memory to import a segment of a GPU");
	r = cuda_mapping_ask(s, segment, generation, deadline, out);
	if (import) {
		cuda_import_put(import);
		return r;
	}
	if (!r)
		send_unmapped(asking);
	pthread_mutex_lock(&cuda_lock);
	list_del(&asking->link);
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
	free(asking);
	return r;
}

/* ---- Closing ---- */

/* Hands it to the thread if that is due. Called with cuda_lock. */
static void close_if_unused(struct cuda_import *import)
{
	if (import->state != IMPORT_CLOSING || import->leases)
		return;
	list_del(&import->link);
	cuda_queue_import(import);
}

void cuda_import_put(struct cuda_import *import)
{
	bool wake = false;

	pthread_mutex_lock(&cuda_lock);
	if (--import->leases == 0) {
		/* The end of an export of ours may have waited for this lease. */
		wake = import->export && atomic_load(&import->export->session->lost);
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

/* What a session has of an export of this process, or NULL. Called with cuda_lock. */
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
			continue;	 /* it was opened like the memory of another process */
		list_del(&import->link); /* our own: it has no mapping and no events */
		free(import);
	}
}

void cuda_import_close(struct cuda_import *import)
{
	cuda_events_destroy(import->device, &import->events);
	if (import->mapping)
		cuda_mapping_put(import->mapping);
	free(import);
}

void cuda_import_unmapped(struct cuda_import *import)
{
	struct cuda_import gone = *import; /* UNMAPPED is sent after it has closed */

	cuda_import_close(import);
	send_unmapped(&gone);
}

/* ---- Events ---- */

int cuda_import_event(struct cuda_import *import, const struct cuda_scope *scope,
		      const unsigned char handle[64], CUevent *out)
{
	struct cuda_event *event;
	CUresult e;

	list_for_each_entry(event, &import->events, link) {
		if (!memcmp(event->handle.bytes, handle, sizeof(event->handle.bytes))) {
			*out = event->event;
			return 0;
		}
	}
	event = calloc(1, sizeof(*event));
	if (!event)
		return tl_fail(-ENOMEM, "no memory for an event");
	memcpy(event->handle.bytes, handle, sizeof(event->handle.bytes));
	e = scope->driver->ipc_open_event_handle(&event->event, event->handle);
	if (e) {
		free(event);
		return cuda_fail(e, "opening the event of the tensor's producer");
	}
	list_add_head(&import->events, &event->link);
	*out = event->event;
	return 0;
}
