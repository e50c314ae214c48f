/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "client/error.h"
#include "client/gpu/event.h"
#include "client/gpu/threads.h"

struct cuda_event *cuda_event_alloc(struct cuda_device *device)
{
	struct cuda_event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	list_init(&event->link);
	list_init(&event->asked);
	event->device = device;
	event->life = atomic_load(&device->life);
	return event;
}

/* Takes the first event that no thread uses off the list; NULL: there is none. */
static struct cuda_event *take(struct list *spare)
{
	struct cuda_event *event, *found = NULL;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(event, spare, link) {
		if (event->pins)
			continue;
		found = event;
		list_del(&found->link);
		break;
	}
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

/* take(), but frees events that have ended with their context and skips them. */
static struct cuda_event *take_alive(struct list *spare)
{
	struct cuda_event *event;

	while ((event = take(spare)) && cuda_event_is_dead(event))
		free(event);
	return event;
}

/* Makes the event spare. Called with cuda_lock. */
static void give(struct list *spare, struct cuda_event *event)
{
	list_add_tail(event->local ? &event->device->events : spare, &event->link);
}

void cuda_event_give(struct list *spare, struct cuda_event *event)
{
	pthread_mutex_lock(&cuda_lock);
	give(spare, event);
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_event_unuse(struct list *spare, struct cuda_event *event)
{
	if (--event->uses == 0)
		give(spare, event);
}

void cuda_event_unpin(struct cuda_event *event)
{
	pthread_mutex_lock(&cuda_lock);
	event->pins--;
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_event_ask(struct cuda_event *event, struct list *list)
{
	if (event->came || !list_empty(&event->asked))
		return;
	event->pins++;
	list_add_tail(list, &event->asked);
}

static CUresult query(const struct cuda_event *event)
{
	struct cuda_scope scope;
	CUresult e = CUDA_E_CONTEXT_IS_DESTROYED;

	if (cuda_event_is_dead(event))
		return e;
	if (cuda_enter(event->device, &scope))
		return cuda_is_ending() ? CUDA_E_NOT_READY : CUDA_E_UNKNOWN;
	if (!cuda_event_is_dead(event))
		e = scope.driver->event_query(event->event);
	cuda_leave(&scope);
	return e;
}

void cuda_events_query(const struct list *list)
{
	struct cuda_event *event;

	list_for_each_entry(event, list, asked)
		event->answer = query(event);
}

void cuda_events_answered(struct list *list)
{
	struct cuda_event *event;

	while (!list_empty(list)) {
		event = list_first_entry(list, struct cuda_event, asked);
		list_del(&event->asked);
		event->pins--;
		event->came = event->answer != CUDA_E_NOT_READY;
		event->result = event->answer;
	}
}

CUresult cuda_event_take(struct cuda_device *device, struct cuda_event **out)
{
	const struct cuda_driver *d = cuda_driver_get(NULL);
	struct cuda_event *event = take_alive(&device->events);
	CUresult e;

	*out = event;
	if (event)
		return CUDA_OK;
	event = d ? cuda_event_alloc(device) : NULL;
	if (!event)
		return CUDA_E_OUT_OF_MEMORY;
	event->local = true;
	e = d->event_create(&event->event, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_BLOCKING_SYNC);
	if (e)
		free(event);
	else
		*out = event;
	return e;
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
	struct cuda_event *event;
	struct cuda_scope scope;

	if (list_empty(events))
		return;
	if (cuda_enter(device, &scope)) { /* after fork(), or at the end of the process */
		cuda_events_keep(events);
		return;
	}
	while ((event = take(events))) {
		if (!cuda_event_is_dead(event))
			scope.driver->event_destroy(event->event);
		free(event);
	}
	cuda_leave(&scope);
	cuda_events_keep(events); /* keeps those that a thread still uses */
}

void cuda_events_share(struct cuda_device *device, struct list *events)
{
	pthread_mutex_lock(&cuda_lock);
	list_move_all(&device->shared, events);
	pthread_mutex_unlock(&cuda_lock);
}

/* Creates an event that other processes can open. The context is current. */
static CUresult event_new(struct cuda_device *device, const struct cuda_scope *scope,
			  struct cuda_event **out)
{
	struct cuda_event *event = cuda_event_alloc(device);
	CUresult e;

	if (!event)
		return CUDA_E_OUT_OF_MEMORY;
	e = scope->driver->event_create(&event->event,
					CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_INTERPROCESS);
	if (!e) {
		e = scope->driver->ipc_get_event_handle(&event->handle, event->event);
		if (e)
			scope->driver->event_destroy(event->event);
	}
	if (e)
		free(event);
	else
		*out = event;
	return e;
}

/* Records an event on the stream. If the stream's work has ended, *out stays NULL. @shared: others
 * must be able to open the event. The context is current. */
static int record(struct cuda_device *device, const struct cuda_scope *scope, struct list *spare,
		  CUstream stream, bool shared, struct cuda_event **out)
{
	const struct cuda_driver *d = scope->driver;
	bool tells = cuda_stream_tells(scope, stream);
	CUresult e = tells ? d->stream_query(stream) : CUDA_E_NOT_READY;
	struct cuda_event *event;

	if (e != CUDA_E_NOT_READY)
		return e ? cuda_fail(e, "asking for stream %#llx", (unsigned long long)stream) : 0;
	event = take_alive(spare);
	if (!event)
		event = take_alive(&device->shared);
	e = event ? CUDA_OK : event_new(device, scope, &event);
	if (e == CUDA_E_OUT_OF_MEMORY && !shared) /* few events can be shared */
		e = cuda_event_take(device, &event);
	if (e == CUDA_E_OUT_OF_MEMORY)
		e = cuda_event_synchronize(device, scope, stream);
	if (e || !event)
		return e ? cuda_fail(e, "getting an event for stream %#llx",
				     (unsigned long long)stream)
			 : 0;
	e = d->event_record(event->event, stream);
	if (!e)
		e = tells ? CUDA_E_NOT_READY : d->event_query(event->event);
	if (e == CUDA_E_NOT_READY) {
		event->uses = 1;
		event->came = false;
		*out = event;
		return 0;
	}
	cuda_event_give(spare, event);
	return e ? cuda_fail(e, "recording an event on stream %#llx", (unsigned long long)stream)
		 : 0;
}

static int enter_and_record(struct cuda_device *device, struct list *spare, intptr_t stream,
			    bool shared, struct cuda_event **out)
{
	struct cuda_scope scope;
	int r = cuda_enter(device, &scope);

	*out = NULL;
	if (r)
		return r;
	r = cuda_stream_usable(&scope, stream);
	if (!r)
		r = record(device, &scope, spare, cuda_stream(stream), shared, out);
	cuda_leave(&scope);
	return r;
}

int cuda_event_record(struct cuda_device *device, struct list *spare, intptr_t stream,
		      struct cuda_event **out)
{
	return enter_and_record(device, spare, stream, true, out);
}

int cuda_event_record_here(struct cuda_device *device, struct list *spare, intptr_t stream,
			   struct cuda_event **out)
{
	return enter_and_record(device, spare, stream, false, out);
}

/* Waits without an event. The legacy stream comes first: a blocking stream waits for its work. */
static CUresult synchronize_both(const struct cuda_scope *scope, CUstream stream)
{
	CUresult e;

	if (cuda_stream_usable(scope, TL_STREAM_LEGACY))
		return CUDA_E_STREAM_CAPTURE_IMPLICIT;
	e = scope->driver->stream_synchronize(CUDA_STREAM_LEGACY);
	return e ? e : scope->driver->stream_synchronize(stream);
}

CUresult cuda_event_synchronize(struct cuda_device *device, const struct cuda_scope *scope,
				CUstream stream)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_event *event = NULL;
	CUresult e, marked;

	e = cuda_event_take(device, &event); /* waiting for an event sleeps instead of spinning */
	if (e && e != CUDA_E_OUT_OF_MEMORY)
		return e;
	marked = e ? e : d->event_record(event->event, stream);
	if (!marked)
		e = d->event_synchronize(event->event);
	else if (cuda_stream_tells(scope, stream)) /* the stream may be of another context */
		e = d->stream_synchronize(stream);
	else
		e = synchronize_both(scope, stream);
	if (event)
		cuda_event_give(&device->events, event);
	return e;
}

int cuda_wait_for_stream(struct cuda_device *device, intptr_t stream)
{
	struct cuda_scope scope;
	CUresult e;
	int r;

	if (stream == TL_STREAM_NONE)
		return 0;
	r = cuda_enter(device, &scope);
	if (r)
		return r;
	r = cuda_stream_usable(&scope, stream);
	e = r ? CUDA_OK : cuda_event_synchronize(device, &scope, cuda_stream(stream));
	cuda_leave(&scope);
	return e ? cuda_fail(e, "waiting for stream %#llx", (unsigned long long)stream) : r;
}
