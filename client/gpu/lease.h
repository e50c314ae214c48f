/* SPDX-License-Identifier: Apache-2.0 */
/* Leases on tensors that lie on a GPU: taken in lease_take.c, ended in lease_end.c. */
#pragma once

#include <assert.h>

#include "client/gpu/device.h"
#include "client/read/lease_tensor.h"

struct cuda_event;
struct cuda_import;
struct cuda_marking;

/* The part of a lease that only tensors on GPUs have. */
struct cuda_lease {
	struct list queue_link;	      /* in a queue of the library's thread */
	struct cuda_import *import;   /* NULL: nothing is opened */
	struct cuda_event *event;     /* it waits for this once its user has left */
	struct cuda_marking *marking; /* the slow thread's task to mark its place, or NULL */
	intptr_t stream;
	uint64_t thread; /* the thread that named the stream */
};
static_assert(sizeof(struct cuda_lease) <= TENSOR_LEASE_OWN, "there is space for it");

static inline struct cuda_lease *cuda_lease_of(const struct tensor_lease *l)
{
	return (struct cuda_lease *)(void *)l->own;
}

static inline struct tensor_lease *cuda_lease_queued(struct list *queue_link)
{
	struct cuda_lease *own = container_of(queue_link, struct cuda_lease, queue_link);

	return (struct tensor_lease *)((char *)own - offsetof(struct tensor_lease, own));
}

/* The deleter: gives the lease up, at once or when the work that its user queued has ended. */
void cuda_lease_delete(DLManagedTensorVersioned *managed);
/* Fills in @options for another lease on the same tensor: how it is leased, and its stream, unless
 * @stream says that @options has one. */
void cuda_lease_again(const struct tensor_lease *l, bool stream, tl_get_options *options);

/* The state of one pass over all leases that wait. Of each stream it queries only the oldest lease,
 * and those that mark their place now. It makes the context current once. Zeroes at first. */
enum { CUDA_SWEEP_STREAMS = 32 };
struct cuda_sweep {
	struct cuda_device *device; /* whose context is current; NULL: none */
	struct cuda_scope scope;
	unsigned nbusy; /* streams on which a lease is known to wait */
	struct cuda_sweep_stream {
		intptr_t stream;
		uint64_t thread;
		bool marks; /* it has marked the work that it waits for, or does so now */
	} busy[CUDA_SWEEP_STREAMS];
};

/* True if the GPU has finished the work of the lease's user. For the library's thread, without
 * cuda_lock. */
bool cuda_lease_idle(struct tensor_lease *l, struct cuda_sweep *sweep);
void cuda_sweep_end(struct cuda_sweep *sweep);
/* Gives up a lease that is idle. Called without cuda_lock. */
void cuda_lease_end(struct tensor_lease *l);
/* For a forked child: the task that marks the lease's place belongs to the parent. */
void cuda_lease_forget_marking(struct tensor_lease *l);

/* Taking leases on tensors that lie on a GPU. */

/* tensor_lease_new() for a row on a GPU. */
int cuda_lease_new(const struct use *use, uint64_t ref, const struct row_head *h,
		   const tl_get_options *options, struct get_until until,
		   DLManagedTensorVersioned **out);
/* cuda_lease_new() without a request. LEASE_E_UNMAPPED: the segment is not open here. */
int cuda_lease_known(const struct use *use, uint64_t ref, const struct row_head *h,
		     const tl_get_options *options, DLManagedTensorVersioned **out);

/* tl_get() of a tensor on a GPU without opening it: the tensor has no data and device number -1. */
int tensor_lease_get_handle(tl_client *client, const char *name, const tl_get_options *options,
			    DLManagedTensorVersioned **out);

/* Reads the handle of the event that an unfinished row has. */
int cuda_row_event(const struct session *s, const struct catalog_row *row,
		   unsigned char handle[64]);
