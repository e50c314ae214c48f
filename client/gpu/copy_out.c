/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of leased tensors on other devices. A copy on a GPU lies in a draft buffer, which is free
 * again when the streams that used the copy are done. The lease on the original is given up when
 * the copy is made, so that a copy keeps no producer waiting. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/event.h"
#include "client/gpu/gpu.h"
#include "client/gpu/lease.h"
#include "client/gpu/publication.h"
#include "client/gpu/publish.h"
#include "client/read/get.h"
#include "client/read/lease_tensor.h"
#include "tensor/copy.h"
#include "tensor/extent.h"

/* The memory of a copy, which all tensors over it share. */
struct moved {
	_Atomic unsigned refs;
	pid_t pid; /* the process that made it: a forked child has only copies on the CPU */
	struct session *session;    /* of the buffer, with a count on it */
	struct cuda_buffer *buffer; /* on a GPU */
	struct cuda_event *written; /* other streams wait for it; NULL: the host has waited */
	void *host;		    /* on the CPU */
	tl_info info;
};

/* A tensor that is handed out. */
struct copied_tensor {
	DLManagedTensorVersioned managed; /* first: the deleter gets its address */
	struct moved *memory;
	intptr_t stream;
	uint64_t thread; /* the thread that named the stream */
	int64_t dims[];	 /* shape, then strides */
};

/* ---- The end ---- */

static struct cuda_device *device_of(const struct moved *m)
{
	return m->buffer->export->memory.device;
}

static void memory_unref(void *context)
{
	struct moved *m = context;
	struct session *s = m->session;

	if (atomic_fetch_sub(&m->refs, 1) > 1)
		return;
	if (m->written)
		cuda_event_give(&device_of(m)->events, m->written);
	if (m->buffer)
		cuda_buffer_put(m->buffer);
	free(m->host);
	free(m);
	if (s)
		use_count_leave(&s->users);
}

/* memory_unref() in a forked child, for a copy on a GPU. The driver's objects are the parent's, so
 * they are not touched. */
static void memory_forget(void *context)
{
	struct list events = LIST_INIT(events);
	struct moved *m = context;
	struct session *s = m->session;

	if (atomic_fetch_sub(&m->refs, 1) > 1)
		return;
	if (m->written)
		list_add_tail(&events, &m->written->link);
	cuda_events_keep(&events);
	cuda_buffer_forget(m->buffer);
	free(m);
	use_count_leave(&s->users);
}

/* Calls @done(@context) when the work now queued on the stream has ended, or @child(@context) in a
 * child that is forked before that. */
static void after(const struct moved *m, intptr_t stream, void (*done)(void *context),
		  void (*child)(void *context), void *context)
{
	if (stream != TL_STREAM_NONE &&
	    cuda_retire(m->buffer->export, stream, NULL, done, child, context))
		cuda_wait_for_stream(device_of(m), stream);
	else if (stream != TL_STREAM_NONE)
		return;
	done(context);
}

static void copied_delete(DLManagedTensorVersioned *managed)
{
	struct copied_tensor *t = (struct copied_tensor *)managed;
	struct moved *m = t->memory;
	int saved = errno;

	tl_failures_hide();
	if (!m->buffer)
		memory_unref(m);
	else if (m->pid == getpid())
		after(m, cuda_stream_here(t->stream, t->thread), memory_unref, memory_forget, m);
	else
		memory_forget(m);
	free(t);
	tl_failures_show();
	errno = saved;
}

static void drop(void *context)
{
	DLManagedTensorVersioned *t = context;

	t->deleter(t);
}

/* ---- Making ---- */

static struct copied_tensor *tensor_new(const DLTensor *as, uint64_t flags, struct moved *m,
					intptr_t stream)
{
	size_t ndim = (size_t)as->ndim;
	struct copied_tensor *t = calloc(1, sizeof(*t) + 2 * ndim * sizeof(int64_t));

	if (!t) {
		tl_fail(-ENOMEM, "no memory for a tensor");
		return NULL;
	}
	t->memory = m;
	t->stream = stream;
	t->thread = thread_unique();
	t->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = t,
		.deleter = copied_delete,
		.flags = flags,
		.dl_tensor = *as,
	};
	if (!ndim)
		return t;
	memcpy(t->dims, as->shape, ndim * sizeof(int64_t));
	memcpy(t->dims + ndim, as->strides, ndim * sizeof(int64_t));
	t->managed.dl_tensor.shape = t->dims;
	t->managed.dl_tensor.strides = t->dims + ndim;
	return t;
}

struct moving {
	DLManagedTensorVersioned *held; /* the original; NULL: it was given up */
	struct copied_tensor *tensor;
	struct moved *memory;
	struct cuda_device *device; /* the destination; NULL: the CPU */
	const char *name;
	uint64_t nbytes; /* that it touches */
	intptr_t stream; /* TL_STREAM_NONE: the host waits */
	int64_t timeout_ns;
};

static bool on_gpu(const DLManagedTensorVersioned *t)
{
	return t->dl_tensor.device.device_type == kDLCUDA;
}

/* Replaces the lease on a GPU tensor by another one that is taken for the legacy stream, so that
 * the copy there comes after the producer's work. */
static int order(struct moving *m)
{
	tl_get_options o = { .timeout_ns = m->timeout_ns,
			     .mode = TL_MODE_READ,
			     .stream = TL_STREAM_LEGACY };
	DLManagedTensorVersioned *ordered;
	int r = lease_again(tensor_lease_of(m->held), &o, &ordered);

	if (r)
		return r;
	/* The new lease is given up after the copy, without another look at the legacy stream: by
	 * then a stream that the legacy stream waits for may be captured, and a look from another
	 * thread would spoil the capture. */
	cuda_lease_of(tensor_lease_of(ordered))->stream = TL_STREAM_NONE;
	drop(m->held);
	m->held = ordered;
	return 0;
}

static int to_cpu(struct moving *m)
{
	const DLTensor *from = &m->held->dl_tensor;
	struct cuda_device *device;
	struct cuda_scope scope;
	size_t capacity = (m->nbytes + TL_ALIGNMENT - 1) / TL_ALIGNMENT * TL_ALIGNMENT;
	void *host = aligned_alloc(TL_ALIGNMENT, capacity), *packed;
	DLTensor there = *from;
	CUresult e;
	int r;

	m->memory->host = host;
	if (!host)
		return tl_fail(-ENOMEM, "no memory to copy %" PRIu64 " bytes of '%s' to the CPU",
			       m->nbytes, m->name);
	r = cuda_device_at(from->device.device_id, &device);
	if (!r)
		r = cuda_enter(device, &scope);
	if (r)
		return r;
	r = cuda_stream_usable(&scope, TL_STREAM_LEGACY); /* the stream that copies */
	e = r ? CUDA_OK
	      : scope.driver->memcpy_dtoh(host, (CUdeviceptr)(uintptr_t)from->data, m->nbytes);
	cuda_leave(&scope);
	if (r)
		return r;
	if (e)
		return cuda_fail(e, "copying %" PRIu64 " bytes of '%s' to the CPU", m->nbytes,
				 m->name);
	if (tensor_is_contiguous(from))
		return 0;
	packed = aligned_alloc(TL_ALIGNMENT, capacity); /* more than needed if there are gaps */
	if (!packed)
		return tl_fail(-ENOMEM, "no memory to copy '%s' to the CPU", m->name);
	there.data = host;
	r = copy_gather(packed, &there, m->held->flags, 0);
	free(host);
	m->memory->host = packed;
	tensor_contiguous_strides(from->ndim, m->tensor->dims, m->tensor->dims + from->ndim);
	return r ? tl_fail(r, "copying '%s': %m", m->name) : 0;
}

/* Gets the copy's buffer. The copy takes over the use's count. */
static int buffer_attempt(struct call *c, const struct use *use, void *context)
{
	struct moving *m = context;
	int r = cuda_buffer_get(use->session, m->device, m->nbytes, 0, &m->memory->buffer);

	(void)c;
	if (!r)
		m->memory->session = use->session;
	return r;
}

/* Makes @stream wait for what is queued on the legacy stream of the GPU that the original is on. */
static int wait_for_other(const struct moving *m, const struct cuda_device *from_device,
			  CUstream stream)
{
	struct cuda_device *from = (struct cuda_device *)(uintptr_t)from_device;
	struct cuda_event *event = NULL;
	struct cuda_scope scope;
	CUresult e;
	int r = cuda_enter(from, &scope);

	if (r)
		return r;
	r = cuda_stream_usable(&scope, TL_STREAM_LEGACY);
	e = r ? CUDA_OK : cuda_event_take(from, &event);
	if (event)
		e = scope.driver->event_record(event->event, CUDA_STREAM_LEGACY);
	cuda_leave(&scope);
	if (r)
		return r;
	r = e ? 0 : cuda_enter(m->device, &scope);
	if (event && !e && !r) {
		e = scope.driver->stream_wait_event(stream, event->event, 0);
		cuda_leave(&scope);
	}
	if (event)
		cuda_event_give(&from->events, event);
	return e ? cuda_fail(e, "ordering the copy of '%s' after its producer", m->name) : r;
}

static CUresult copy(const struct moving *m, const struct cuda_scope *scope,
		     const struct cuda_device *from_device, CUstream stream)
{
	CUdeviceptr to = m->memory->buffer->export->memory.base;
	const void *from = m->held->dl_tensor.data;

	if (!from_device)
		return scope->driver->memcpy_htod_async(to, from, m->nbytes, stream);
	return scope->driver->memcpy_peer_async(to, m->device->context,
						(CUdeviceptr)(uintptr_t)from, from_device->context,
						m->nbytes, stream);
}

static int copy_on(struct moving *m, struct cuda_device *from, CUstream stream)
{
	struct cuda_scope scope;
	CUresult e = CUDA_OK;
	int r = from ? wait_for_other(m, from, stream) : 0;

	if (!r)
		r = cuda_enter(m->device, &scope);
	if (r)
		return r;
	r = cuda_stream_usable(&scope, (intptr_t)stream);
	if (!r)
		e = copy(m, &scope, from, stream);
	if (!r && !e && m->stream != TL_STREAM_NONE) {
		e = cuda_event_take(m->device, &m->memory->written);
		if (!e)
			e = scope.driver->event_record(m->memory->written->event, stream);
	}
	cuda_leave(&scope);
	return e ? cuda_fail(e, "copying %" PRIu64 " bytes of '%s' to GPU %d", m->nbytes, m->name,
			     m->device->ordinal)
		 : r;
}

static int to_gpu(tl_client *client, struct moving *m)
{
	intptr_t stream = m->stream == TL_STREAM_NONE ? TL_STREAM_LEGACY : m->stream;
	struct call c = call_begin_request(client);
	struct cuda_device *from = NULL;
	int r = 0;

	if (on_gpu(m->held))
		r = cuda_device_at(m->held->dl_tensor.device.device_id, &from);
	if (!r)
		r = call_run(&c, buffer_attempt, m);
	if (r)
		return r;
	r = copy_on(m, from, cuda_stream(stream));
	if (r || m->stream == TL_STREAM_NONE) {
		int waited = cuda_wait_for_stream(m->device, stream);

		return r ? r : waited; /* no work may write to a freed buffer */
	}
	after(m->memory, stream, drop, drop, m->held);
	m->held = NULL;
	return 0;
}

static int move(tl_client *client, struct moving *m, DLDevice to)
{
	tl_info *info = &m->memory->info;
	int64_t low, high;
	int r = tensor_lease_info(tensor_lease_of(m->held), info);

	if (!r)
		r = tensor_extent(&m->held->dl_tensor, m->held->flags, &low, &high);
	if (!r && to.device_type == kDLCUDA)
		r = cuda_device_at(to.device_id, &m->device);
	if (r)
		return r;
	m->nbytes = (uint64_t)high;
	if (m->nbytes && on_gpu(m->held))
		r = order(m);
	if (!r && m->nbytes)
		r = m->device ? to_gpu(client, m) : to_cpu(m);
	if (r)
		return r;
	info->device = to;
	memset(info->device_uuid, 0, sizeof(info->device_uuid));
	if (m->device)
		memcpy(info->device_uuid, m->device->uuid.bytes, sizeof(info->device_uuid));
	if (m->tensor->managed.dl_tensor.ndim)
		memcpy(info->strides, m->tensor->managed.dl_tensor.strides,
		       sizeof(int64_t) * (size_t)info->ndim);
	return 0;
}

bool copied_needed(const DLManagedTensorVersioned *held, DLDevice to)
{
	DLDevice is = held->dl_tensor.device;

	return is.device_type != to.device_type || is.device_id != to.device_id;
}

int copied_new(tl_client *client, const char *name, DLManagedTensorVersioned *held,
	       const tl_get_options *options, DLManagedTensorVersioned **out)
{
	const DLDevice to = options->device;
	uint64_t flags = held->flags & ~(uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY;
	struct moved *memory = calloc(1, sizeof(*memory));
	struct moving m = { .held = held,
			    .memory = memory,
			    .name = name,
			    .stream = options->stream,
			    .timeout_ns = options->timeout_ns };
	int r;

	if (!memory) {
		drop(held);
		return tl_fail(-ENOMEM, "no memory for a copy of '%s'", name);
	}
	memory->pid = getpid();
	memory->refs = 1;
	memory->info.size = sizeof(memory->info);
	m.tensor = tensor_new(&held->dl_tensor, flags | DLPACK_FLAG_BITMASK_IS_COPIED, memory,
			      to.device_type == kDLCUDA ? m.stream : TL_STREAM_NONE);
	r = m.tensor ? move(client, &m, to) : -ENOMEM;
	if (m.held)
		drop(m.held);
	if (r) {
		free(m.tensor);
		memory_unref(memory);
		return r;
	}
	memory->info.dlpack_flags = m.tensor->managed.flags;
	m.tensor->managed.dl_tensor.device = to;
	m.tensor->managed.dl_tensor.data = memory->buffer
						   ? (void *)(uintptr_t)
							     memory->buffer->export->memory.base
						   : memory->host;
	*out = &m.tensor->managed;
	return 0;
}

/* ---- Copies that were handed out ---- */

const tl_info *copied_info(const DLManagedTensorVersioned *tensor)
{
	return tensor->deleter == copied_delete
		       ? &((const struct copied_tensor *)tensor)->memory->info
		       : NULL;
}

int copied_again(const DLManagedTensorVersioned *tensor, intptr_t stream,
		 DLManagedTensorVersioned **out)
{
	struct moved *m = ((const struct copied_tensor *)tensor)->memory;
	struct copied_tensor *t;
	struct cuda_scope scope;
	CUresult e = CUDA_OK;
	int r = 0;

	if (m->buffer && stream != TL_STREAM_NONE &&
	    (m->written || cuda_stream(stream) != CUDA_STREAM_LEGACY)) {
		r = cuda_enter(device_of(m), &scope);
		if (r)
			return r;
		r = cuda_stream_fits(&scope, device_of(m), stream);
		if (!r && m->written && !cuda_event_is_dead(m->written))
			e = scope.driver->stream_wait_event(cuda_stream(stream), m->written->event,
							    0);
		cuda_leave(&scope);
		r = e ? cuda_fail(e, "making stream %#llx wait for the copy",
				  (unsigned long long)stream)
		      : r;
	}
	if (r)
		return r;
	t = tensor_new(&tensor->dl_tensor, tensor->flags, m, stream);
	if (!t)
		return -ENOMEM;
	atomic_fetch_add(&m->refs, 1);
	*out = &t->managed;
	return 0;
}
