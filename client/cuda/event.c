/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "client/cuda/event.h"
#include "client/cuda/session.h"
#include "client/error.h"

struct cuda_event *cuda_event_take(struct cuda_device *device)
{
	const struct cuda_driver *d = cuda_driver_get(NULL);
	struct cuda_event *event;

	if (!list_empty(&device->events)) {
		event = list_first_entry(&device->events, struct cuda_event, link);
		list_del(&event->link);
		return event;
	}
	event = d ? calloc(1, sizeof(*event)) : NULL;
	if (!event)
		return NULL;
	list_init(&event->link);
	if (d->event_create(&event->event, CUDA_EVENT_DISABLE_TIMING)) {
		free(event);
		return NULL;
	}
	return event;
}

void cuda_events_keep(struct list *events)
{
	static struct list kept = LIST_INIT(kept); /* where memory checkers find them */

	pthread_mutex_lock(&cuda_lock);
	list_move_all(&kept, events);
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_events_destroy(struct cuda_device *device, struct list *events)
{
	struct cuda_scope scope;

	if (list_empty(events))
		return;
	if (cuda_enter(device, &scope)) { /* after fork(), or at the end of the process */
		cuda_events_keep(events);
		return;
	}
	list_for_each_safe(l, events) {
		struct cuda_event *event = list_entry(l, struct cuda_event, link);

		scope.driver->event_destroy(event->event);
		list_del(&event->link);
		free(event);
	}
	cuda_leave(&scope);
}

/* Creates an event that other processes can open. The context is current. */
static int event_new(const struct cuda_scope *scope, struct cuda_event **out)
{
	struct cuda_event *event = calloc(1, sizeof(*event));
	CUresult e;

	if (!event)
		return tl_fail(-ENOMEM, "no memory for a CUDA event");
	list_init(&event->link);
	e = scope->driver->event_create(&event->event,
					CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_INTERPROCESS);
	if (!e) {
		e = scope->driver->ipc_get_event_handle(&event->handle, event->event);
		if (e)
			scope->driver->event_destroy(event->event);
	}
	if (e) {
		free(event);
		return cuda_fail(e, "creating an event that other processes can wait for");
	}
	*out = event;
	return 0;
}

static void give(struct list *spare, struct cuda_event *event)
{
	pthread_mutex_lock(&cuda_lock);
	list_add_tail(spare, &event->link);
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_event_record(struct cuda_device *device, struct list *spare, intptr_t stream,
		      struct cuda_event **out)
{
	struct cuda_event *event = NULL;
	struct cuda_scope scope;
	CUresult result = CUDA_OK;
	int r;

	r = cuda_enter(device, &scope);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	if (!list_empty(spare)) {
		event = list_first_entry(spare, struct cuda_event, link);
		list_del(&event->link);
	}
	pthread_mutex_unlock(&cuda_lock);
	r = cuda_stream_usable(&scope, stream);
	if (!r && !event)
		r = event_new(&scope, &event);
	if (!r && event) {
		result = scope.driver->event_record(event->event, cuda_stream(stream));
		if (!result)
			result = scope.driver->event_query(event->event);
		if (result && result != CUDA_E_NOT_READY)
			r = cuda_fail(result, "recording an event on stream %#llx",
				      (unsigned long long)stream);
	}
	if (event && (r || !result)) {
		give(spare, event);
		event = NULL;
	}
	cuda_leave(&scope);
	if (!r)
		*out = event;
	return r;
}
