/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/cuda/export.h"
#include "client/cuda/mapping.h"
#include "client/cuda/view.h"
#include "client/error.h"
#include "client/request.h"

/* ---- Finding, making ---- */

static struct list *bucket(struct cuda_session *cs, uint32_t segment)
{
	return &cs->views[segment % CUDA_VIEW_BUCKETS];
}

/* cuda_lock. */
static struct cuda_view *view_find(struct cuda_session *cs, uint32_t segment, uint32_t generation)
{
	struct cuda_view *view;

	list_for_each_entry(view, bucket(cs, segment), link)
		if (view->segment == segment && view->generation == generation)
			return view;
	return NULL;
}

/* cuda_lock. It is not open yet, and has no lease. */
static struct cuda_view *view_add(struct cuda_session *cs, uint32_t segment, uint32_t generation)
{
	struct cuda_view *view = calloc(1, sizeof(*view));

	if (!view)
		return NULL;
	view->session = cs->session;
	view->segment = segment;
	view->generation = generation;
	list_init(&view->queue_link);
	list_init(&view->events);
	list_add_head(bucket(cs, segment), &view->link);
	return view;
}

/* If this process exported it, there is nothing to open, and it could not be. cuda_lock. */
static bool view_own(struct cuda_view *view)
{
	struct cuda_export *e = cuda_export_here(view->session->instance, view->segment,
						 view->generation);

	if (!e)
		return false;
	view->export = e;
	view->device = e->memory.device;
	view->base = e->memory.base;
	return true;
}

static void send_unmapped(const struct cuda_view *view)
{
	struct session *s = view->session;
	struct wire_segment_ref m = {
		.header = { .type = WIRE_UNMAPPED, .length = sizeof(m) },
		.segment = view->segment,
		.segment_generation = view->generation,
	};

	session_send(s, &m, client_deadline(s->client));
}

/* Without the lock: it is ours, since it is neither open nor in anybody else's hands. */
static int view_open(struct cuda_view *view, int64_t deadline)
{
	bool imported = false;
	int r = cuda_mapping_get(view->session, view->segment, view->generation, deadline,
				 &imported, &view->mapping);

	if (!r) {
		view->device = view->mapping->device;
		view->base = view->mapping->base;
	} else if (imported) {
		send_unmapped(view);
	}
	return r;
}

/* Opens a new view, under the lock but for the work itself. */
static int view_start(struct cuda_view *view, int64_t deadline)
{
	int r = 0;

	if (!view_own(view)) {
		pthread_mutex_unlock(&cuda_lock);
		r = view_open(view, deadline);
		pthread_mutex_lock(&cuda_lock);
	}
	view->open = !r;
	if (r)
		list_del(&view->link);
	pthread_cond_broadcast(&cuda_changed);
	return r;
}

int cuda_view_get(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		  struct cuda_view **out)
{
	struct cuda_session *cs;
	struct cuda_view *view;
	int r;

	r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	while ((view = view_find(cs, segment, generation)) && !view->open)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (!view) {
		view = view_add(cs, segment, generation);
		r = view ? view_start(view, deadline) : -ENOMEM;
	}
	if (!r)
		view->leases++;
	pthread_mutex_unlock(&cuda_lock);
	if (!r)
		*out = view;
	else if (!view)
		r = tl_fail(-ENOMEM, "no memory for a view");
	else
		free(view);
	return r;
}

struct cuda_view *cuda_view_known(struct session *s, uint32_t segment, uint32_t generation)
{
	struct cuda_view *view = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (s->cuda)
		view = view_find(s->cuda, segment, generation);
	if (view && view->open)
		view->leases++;
	else
		view = NULL;
	pthread_mutex_unlock(&cuda_lock);
	return view;
}

/* Others who want the segment wait while we ask: else they might open it, and we say that it is not
 * open. */
int cuda_view_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		  struct wire_export *out)
{
	struct cuda_view *view, *asking = NULL;
	struct cuda_session *cs;
	int r;

	r = cuda_session_get(s, &cs);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	while ((view = view_find(cs, segment, generation)) && !view->open)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (view)
		view->leases++;
	else
		asking = view_add(cs, segment, generation);
	pthread_mutex_unlock(&cuda_lock);
	if (!view && !asking)
		return tl_fail(-ENOMEM, "no memory for a view");
	r = cuda_import_handle(s, segment, generation, deadline, out);
	if (view) {
		cuda_view_put(view);
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

void cuda_view_put(struct cuda_view *view)
{
	bool wake = false;

	pthread_mutex_lock(&cuda_lock);
	if (--view->leases == 0) {
		/* If it is our own memory, that may be what the end of its export waits for. */
		wake = view->unmap || (view->export && atomic_load(&view->export->session->lost));
		if (view->unmap) {
			list_del(&view->link);
			cuda_queue_view(view);
		}
	}
	pthread_mutex_unlock(&cuda_lock);
	if (wake)
		cuda_wake();
}

bool cuda_view_unmap(struct cuda_session *cs, uint32_t segment, uint32_t generation)
{
	struct cuda_view *view = view_find(cs, segment, generation);

	if (!view)
		return false;
	view->unmap = true;
	if (!view->open || view->leases)
		return true; /* who opens it will have a lease, and give that up */
	list_del(&view->link);
	cuda_queue_view(view);
	return true;
}

bool cuda_views_leased(const struct cuda_export *e)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link) {
		struct cuda_view *view = cs->session->instance == e->session->instance
						 ? view_find(cs, e->segment, e->generation)
						 : NULL;

		if (view && view->leases)
			return true;
	}
	return false;
}

void cuda_views_forget(const struct cuda_export *e)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link) {
		struct cuda_view *view = cs->session->instance == e->session->instance
						 ? view_find(cs, e->segment, e->generation)
						 : NULL;

		if (!view || view->export != e)
			continue;      /* opened as others' memory is */
		list_del(&view->link); /* no mapping, no events: it was our own */
		free(view);
	}
}

void cuda_view_close(struct cuda_view *view)
{
	cuda_events_destroy(view->device, &view->events);
	if (view->mapping)
		cuda_mapping_put(view->mapping);
	free(view);
}

void cuda_view_unmapped(struct cuda_view *view)
{
	struct cuda_view gone = *view; /* it says so when it has closed */

	cuda_view_close(view);
	send_unmapped(&gone);
}

/* ---- Events ---- */

int cuda_view_event(struct cuda_view *view, const struct cuda_scope *scope,
		    const unsigned char handle[64], CUevent *out)
{
	struct cuda_event *event;
	CUresult e;

	list_for_each_entry(event, &view->events, link) {
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
	list_add_head(&view->events, &event->link);
	*out = event->event;
	return 0;
}
