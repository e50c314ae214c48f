/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/event.h"
#include "client/cuda/export.h"
#include "client/cuda/import.h"
#include "client/cuda/mapping.h"
#include "client/error.h"
#include "client/session/client.h"
#include "client/session/request.h"

/* ---- Finding, making ---- */

static struct list *bucket(struct cuda_session *cs, uint32_t segment)
{
	return &cs->imports[segment % CUDA_IMPORT_BUCKETS];
}

/* cuda_lock. */
static struct cuda_import *import_find(struct cuda_session *cs, uint32_t segment,
				       uint32_t generation)
{
	struct cuda_import *import;

	list_for_each_entry(import, bucket(cs, segment), link)
		if (import->segment == segment && import->generation == generation)
			return import;
	return NULL;
}

/* cuda_lock. It is not open yet, and has no lease. */
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

/* If this process exported it, there is nothing to open, and it could not be. cuda_lock. */
static bool import_own(struct cuda_import *import)
{
	struct cuda_export *e = cuda_export_here(import->session->catalog.instance, import->segment,
						 import->generation);

	if (!e)
		return false;
	import->export = e;
	import->device = e->memory.device;
	import->base = e->memory.base;
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

/* Without the lock: it is ours, since it is neither open nor in anybody else's hands. */
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

/* Opens a new import, under the lock but for the work itself. */
static int import_start(struct cuda_import *import, int64_t deadline)
{
	int r = 0;

	if (!import_own(import)) {
		pthread_mutex_unlock(&cuda_lock);
		r = import_open(import, deadline);
		pthread_mutex_lock(&cuda_lock);
	}
	import->open = !r;
	if (r)
		list_del(&import->link);
	pthread_cond_broadcast(&cuda_changed);
	return r;
}

int cuda_import_get(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct cuda_import **out)
{
	struct cuda_session *cs;
	struct cuda_import *import;
	int r;

	r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	while ((import = import_find(cs, segment, generation)) && !import->open)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (!import) {
		import = import_add(cs, segment, generation);
		r = import ? import_start(import, deadline) : -ENOMEM;
	}
	if (!r)
		import->leases++;
	pthread_mutex_unlock(&cuda_lock);
	if (!r)
		*out = import;
	else if (!import)
		r = tl_fail(-ENOMEM, "no memory for an import");
	else
		free(import);
	return r;
}

struct cuda_import *cuda_import_known(struct session *s, uint32_t segment, uint32_t generation)
{
	struct cuda_import *import = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s))
		import = import_find(cuda_of(s), segment, generation);
	if (import && import->open)
		import->leases++;
	else
		import = NULL;
	pthread_mutex_unlock(&cuda_lock);
	return import;
}

/* Others who want the segment wait while we ask: else they might open it, and we say that it is not
 * open. */
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
	while ((import = import_find(cs, segment, generation)) && !import->open)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (import)
		import->leases++;
	else
		asking = import_add(cs, segment, generation);
	pthread_mutex_unlock(&cuda_lock);
	if (!import && !asking)
		return tl_fail(-ENOMEM, "no memory for an import");
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

void cuda_import_put(struct cuda_import *import)
{
	bool wake = false;

	pthread_mutex_lock(&cuda_lock);
	if (--import->leases == 0) {
		/* If it is our own memory, that may be what the end of its export waits for. */
		wake = import->unmap ||
		       (import->export && atomic_load(&import->export->session->lost));
		if (import->unmap) {
			list_del(&import->link);
			cuda_queue_import(import);
		}
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
	import->unmap = true;
	if (!import->open || import->leases)
		return true; /* who opens it will have a lease, and give that up */
	list_del(&import->link);
	cuda_queue_import(import);
	return true;
}

bool cuda_imports_leased(const struct cuda_export *e)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link) {
		struct cuda_import *import = cs->session->catalog.instance ==
							     e->session->catalog.instance
						     ? import_find(cs, e->segment, e->generation)
						     : NULL;

		if (import && import->leases)
			return true;
	}
	return false;
}

void cuda_imports_forget(const struct cuda_export *e)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link) {
		struct cuda_import *import = cs->session->catalog.instance ==
							     e->session->catalog.instance
						     ? import_find(cs, e->segment, e->generation)
						     : NULL;

		if (!import || import->export != e)
			continue;	 /* opened as others' memory is */
		list_del(&import->link); /* no mapping, no events: it was our own */
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
	struct cuda_import gone = *import; /* it says so when it has closed */

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
		return cuda_fail(e, "opening the producer's event");
	}
	list_add_head(&import->events, &event->link);
	*out = event->event;
	return 0;
}
