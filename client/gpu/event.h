/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of the driver. An event is recorded on a stream, and has come when the work that was
 * queued there before it has ended. Consumers open a producer's events and wait for them; a lease
 * that was given up waits for a local event. Events are reused. Their lists and pins are under
 * cuda_lock. Functions are called without that lock unless they say otherwise, since the driver may
 * wait for space on a stream.
 *
 * An event that other processes can open is never destroyed: CUDA does not define what calls in
 * other processes do with it afterwards. So a handle always means the same event.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "client/gpu/device.h"
#include "util/list.h"

struct cuda_event {
	struct list link;
	unsigned uses; /* publications that wait for it */
	bool came;     /* it has come, with @result */
	CUresult result;
	struct list asked; /* in a list of events to query; under cuda_asking */
	CUresult answer;
	unsigned pins; /* threads that use it without cuda_lock: it is not destroyed or recorded */
	bool local;    /* no other process can open it: when spare it is in its device's events */
	struct cuda_device *device;
	unsigned life; /* device->life when it was made */
	CUevent event;
	struct cuda_ipc_handle handle; /* opens it elsewhere; unused if it is local */
};

/* Gets an event of the device that no other process sees. *out is NULL on failure. The device's
 * context is current. */
CUresult cuda_event_take(struct cuda_device *device, struct cuda_event **out);
/* Makes a struct without an event of the driver. NULL: no memory. */
struct cuda_event *cuda_event_alloc(struct cuda_device *device);
/* True if the event has ended with its context and must not be passed to the driver any more. */
static inline bool cuda_event_is_dead(const struct cuda_event *event)
{
	return event->life != atomic_load(&event->device->life);
}
/* Makes the event spare: in @spare, or in its device's events if it is local. */
void cuda_event_give(struct list *spare, struct cuda_event *event);

/*
 * Query each event once, even if several publications share it: cuda_event_ask(), under cuda_lock,
 * adds it to @list unless it is there; cuda_events_query(), without that lock, asks the driver; and
 * cuda_events_answered(), under the lock, notes which events have come and empties the list. The
 * caller holds cuda_asking all the time.
 */
void cuda_event_ask(struct cuda_event *event, struct list *list);
void cuda_events_query(const struct list *list);
void cuda_events_answered(struct list *list);

/* Ends a use; the last one makes the event spare, as cuda_event_give() does. Called with
 * cuda_lock. */
void cuda_event_unuse(struct list *spare, struct cuda_event *event);
void cuda_event_unpin(struct cuda_event *event);

/*
 * Records an event that other processes can open on @stream: one of @spare or of the device, or a
 * new one. *out is NULL if all work there has ended, so that nobody needs to wait; else it has one
 * use. Where the driver has no more events, this waits for the work. 0, or a negative errno with a
 * text.
 */
int cuda_event_record(struct cuda_device *device, struct list *spare, intptr_t stream,
		      struct cuda_event **out);
/* cuda_event_record() for work that only this process waits for: a local event will do where the
 * driver has no more events that others can open. */
int cuda_event_record_here(struct cuda_device *device, struct list *spare, intptr_t stream,
			   struct cuda_event **out);

/*
 * Waits on the host for the work queued on the stream, and for work that it implicitly waits for.
 * The device's context is current, and the stream is usable.
 */
CUresult cuda_event_synchronize(struct cuda_device *device, const struct cuda_scope *scope,
				CUstream stream);
/* cuda_event_synchronize() for a stream that may not be usable. Returns 0, or a negative errno. */
int cuda_wait_for_stream(struct cuda_device *device, intptr_t stream);

/* Destroys the events of a list. They must be opened from other processes, or local. */
void cuda_events_destroy(struct cuda_device *device, struct list *events);
/* Gives free events that other processes may have open to the device, for the next export. */
void cuda_events_share(struct cuda_device *device, struct list *events);
/* Never uses the events of the list again, and does not give them to the driver either. */
void cuda_events_keep(struct list *events);
