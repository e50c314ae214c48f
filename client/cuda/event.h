/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of the driver: an event is recorded on a stream, and has come when the work that was
 * queued there before it has ended. Consumers wait for those of a producer, which other processes
 * can open; a lease that was given up waits for a local one. Events are used again: their lists are
 * under cuda_lock.
 */
#pragma once

#include "client/cuda/device.h"
#include "util/list.h"

struct cuda_event {
	struct list link;
	CUevent event;
	struct cuda_ipc_handle handle; /* opens it elsewhere; unused if it is local */
};

/*
 * An event of the device that no other process sees; NULL if there can be none. The caller has
 * cuda_lock, and the device's context is current.
 */
struct cuda_event *cuda_event_take(struct cuda_device *device);

/*
 * Records an event that other processes can open on @stream: one of @spare, or a new one. *out is
 * NULL if all work there has ended, so that nobody needs to wait. 0, or a negative errno with a
 * text. The caller does not have cuda_lock.
 */
int cuda_event_record(struct cuda_device *device, struct list *spare, intptr_t stream,
		      struct cuda_event **out);

/* Destroys all events of a list, local and shared ones. The caller does not have cuda_lock. */
void cuda_events_destroy(struct cuda_device *device, struct list *events);
/* Leaves all events of a list as they are, for good: the same. */
void cuda_events_keep(struct list *events);
