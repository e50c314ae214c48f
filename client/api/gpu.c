/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions that concern GPUs only. */
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tensorlease/cuda.h>

#include "client/api/client.h"
#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/device.h"
#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/publication.h"
#include "client/publish/draft_request.h"
#include "util/fd.h"

/* For programs that make CUDA's IPC calls themselves. None of this needs CUDA here. */

/* ---- Publishing ---- */

struct freed {
	void (*call)(void *context);
	void *context;
};

static void call_freed(void *context)
{
	struct freed *freed = context;

	if (freed->call)
		freed->call(freed->context);
	free(freed);
}

static int handle_memory(struct cuda_memory *memory, const tl_ipc_handle *handle, uint64_t nbytes)
{
	if (!handle->allocation_size || handle->allocation_size > WIRE_DEVICE_BYTES_MAX ||
	    handle->offset > handle->allocation_size ||
	    nbytes > handle->allocation_size - handle->offset)
		return tl_fail(-EINVAL,
			       "tl_ipc_handle: a tensor of %" PRIu64 " bytes at %" PRIu64
			       " does not fit into an allocation of %" PRIu64,
			       nbytes, handle->offset, handle->allocation_size);
	*memory = (struct cuda_memory){
		.kind = SEGMENT_CUDA_IPC,
		.size = handle->allocation_size,
		.nparts = 1,
	};
	memcpy(memory->uuid, handle->device_uuid, sizeof(memory->uuid));
	memcpy(memory->handle, handle->memory, sizeof(memory->handle));
	return 0;
}

struct handle_publishing {
	struct cuda_memory memory;
	struct cuda_placing placing;
	struct freed *freed;
	uint64_t *version;
};

static int publish_attempt(struct call *c, const struct use *use, void *context)
{
	struct handle_publishing *p = context;
	struct cuda_opening o = { .memory = &p->memory };
	struct cuda_publication *publication;
	int r = cuda_publication_for(use->session, &o, &publication);

	if (!r)
		r = cuda_place(publication, &p->placing, call_freed, p->freed, p->version);
	return call_done(c, use, r);
}

/* Members that a later version may give a meaning are 0 until then. */
static int handle_check(tl_ipc_handle *copy, const tl_ipc_handle *handle)
{
	static const unsigned char zeros[sizeof(copy->reserved)];
	int r = client_options(copy, sizeof(*copy), handle, sizeof(*copy), "tl_ipc_handle");

	if (!r && memcmp(copy->reserved, zeros, sizeof(zeros)) != 0)
		r = tl_fail(-EINVAL, "tl_ipc_handle.reserved is not 0");
	return r;
}

static int publish_handle(tl_client *client, const tl_ipc_handle *handle, const tl_put_options *o,
			  const struct draft_request *request, const struct freed *freed,
			  uint64_t *version)
{
	DLTensor as = { .dtype = request->dtype,
			.ndim = request->ndim,
			.shape = (int64_t *)request->shape };
	struct handle_publishing p = {
		.placing = { .as = &as,
			     .flags = request->flags,
			     .offset = handle->offset,
			     .name = request->name,
			     .name_len = request->name_len,
			     .metadata = o->metadata,
			     .metadata_size = o->metadata_size,
			     .lifetime = put_lifetime(o),
			     .stream = TL_STREAM_NONE,
			     .foreign_event = handle->has_event ? handle->event : NULL },
		.version = version,
	};
	struct call c = call_begin_request(client);
	int r = handle_memory(&p.memory, handle, request->nbytes);

	if (r)
		return r;
	p.freed = malloc(sizeof(*p.freed));
	if (!p.freed)
		return tl_fail(-ENOMEM, "no memory to publish '%s'", request->name);
	*p.freed = *freed;
	r = call_run(&c, publish_attempt, &p);
	if (r && r != -EINPROGRESS)
		free(p.freed);
	return r;
}

TL_API int tl_publish_ipc_handle(tl_client *client, const char *name, const tl_ipc_handle *handle,
				 const tl_spec *spec, const tl_put_options *options,
				 void (*freed)(void *context), void *context, uint64_t *version)
{
	struct draft_request request = { .name = name };
	const struct freed call = { freed, context };
	tl_ipc_handle copy;
	tl_put_options o;
	int r;

	if (!client || !name || !handle || !spec)
		return tl_fail(-EINVAL, "tl_publish_ipc_handle: %s is NULL",
			       !client	 ? "client"
			       : !name	 ? "name"
			       : !handle ? "handle"
					 : "spec");
	r = handle_check(&copy, handle);
	if (!r)
		r = put_options(&o, options);
	if (!r)
		r = draft_request_check(&request, spec);
	if (!r && request.own_pages)
		r = tl_fail(-EINVAL, "tl_publish_ipc_handle: tl_spec.flags is for tl_create()");
	return r ? r : publish_handle(client, &copy, &o, &request, &call, version);
}

/* ---- Getting ---- */

enum { GET_TRIES = 100 };

static int fill_handle(struct tensor_lease *l, tl_ipc_handle *handle)
{
	struct session *s = l->session;
	const struct catalog_row *row = &s->catalog.rows[ref_slot(l->ref)];
	const struct row_head head = row_head(row);
	tl_ipc_handle h = { .offset = head.offset };
	struct wire_export what;
	int r;

	r = cuda_import_ask(s, head.segment, head.segment_generation, session_deadline(s), &what);
	if (r)
		return r;
	if (what.kind != SEGMENT_CUDA_IPC)
		return tl_fail(
			-ENOTSUP,
			"the tensor is not in memory that a CUDA IPC handle opens, but in that of "
			"%s: get it with tl_get()",
			what.kind == SEGMENT_CUDA_POOL ? "a stream-ordered pool"
						       : "a virtual memory allocator");
	if (h.offset > what.size)
		return tl_fail(-EPROTO, "the catalog has a tensor at %llu in %llu bytes of a GPU",
			       (unsigned long long)h.offset, (unsigned long long)what.size);
	memcpy(h.device_uuid, what.device, sizeof(h.device_uuid));
	memcpy(h.memory, what.handle, sizeof(h.memory));
	h.allocation_size = what.size;
	h.has_event = row_is_unfinished(row);
	if (h.has_event)
		r = cuda_row_event(s, row, h.event);
	if (!r)
		*handle = h;
	return r;
}

/* LEASE_E_STALE: it was replaced before we were a holder of its memory (G4): try again. */
static int get_handle(tl_client *client, const char *name, const tl_get_options *options,
		      tl_ipc_handle *handle, DLManagedTensorVersioned **out)
{
	DLManagedTensorVersioned *tensor;
	struct tensor_lease *l;
	tl_ipc_handle found;
	int r = tensor_lease_get_handle(client, name, options, &tensor);

	if (r)
		return r;
	l = tensor_lease_of(tensor);
	if (tensor->dl_tensor.device.device_type != kDLCUDA)
		r = tl_fail(-ENOTSUP, "'%s' is not on a GPU", name);
	else
		r = fill_handle(l, &found);
	if (!lease_stands(l->session, l->ref))
		r = LEASE_E_STALE;
	if (!r) {
		client_result(handle, &found, sizeof(found));
		*out = tensor;
		return 0;
	}
	tensor->deleter(tensor);
	return r == SESSION_E_UNSENT || r == SESSION_E_ENDED
		       ? tl_fail(-ENOTCONN, "the daemon at %s ended the connection",
				 client->address.path)
		       : r;
}

TL_API int tl_get_ipc_handle(tl_client *client, const char *name, const tl_get_options *options,
			     tl_ipc_handle *handle, DLManagedTensorVersioned **out)
{
	tl_get_options o = { .size = sizeof(o) };
	int r;

	if (!client || !name || !handle || !out)
		return tl_fail(-EINVAL, "tl_get_ipc_handle: %s is NULL",
			       !client	 ? "client"
			       : !name	 ? "name"
			       : !handle ? "handle"
					 : "out");
	r = client_result_check(handle, sizeof(*handle), "tl_ipc_handle");
	if (!r && options)
		r = client_options(&o, sizeof(o), options, sizeof(o), "tl_get_options");
	if (!r && o.flags)
		r = tl_fail(-EINVAL, "tl_get_ipc_handle: tl_get_options.flags is %#x, not 0",
			    o.flags);
	for (unsigned n = 0; !r && n < GET_TRIES; n++) {
		r = get_handle(client, name, &o, handle, out);
		if (r != LEASE_E_STALE)
			return r;
		r = 0;
	}
	return r ? r
		 : tl_fail(-ETIMEDOUT, "'%s' was replaced %d times while its handle was asked for",
			   name, GET_TRIES);
}

/* Information about GPUs: those of this process, and those on which the daemon counts bytes. */

static int attribute(const struct cuda_driver *d, const struct cuda_device *device, int which)
{
	int value = 0;

	return d->device_get_attribute(&value, which, device->device) ? 0 : value;
}

/* Where CUDA has IPC at all. The driver's word on a piece of memory counts when that is published:
 * asking about none here makes no context and allocates nothing. */
static bool legacy_capable(const struct cuda_driver *d, const struct cuda_device *device)
{
	return attribute(d, device, CUDA_DEVICE_UNIFIED_ADDRESSING) &&
	       !attribute(d, device, CUDA_DEVICE_INTEGRATED);
}

TL_API int tl_get_cuda_info(int device, tl_cuda_info *info)
{
	tl_cuda_info now = { 0 };
	const struct cuda_driver *d;
	struct cuda_device *dev;
	size_t total = 0;
	int r;

	if (!info)
		return tl_fail(-EINVAL, "tl_get_cuda_info: info is NULL");
	r = client_result_check(info, sizeof(now), "tl_cuda_info");
	if (!r)
		r = cuda_device_at(device, &dev);
	if (r)
		return r;
	d = cuda_driver();
	if (!d)
		return -ENODEV;
	d->device_get_count(&now.count);
	now.driver_version = d->version;
	memcpy(now.uuid, dev->uuid.bytes, sizeof(now.uuid));
	d->device_get_name(now.name, sizeof(now.name), dev->device);
	if (!d->device_total_mem(&total, dev->device))
		now.total_bytes = total;
	now.compute_major = attribute(d, dev, CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR);
	now.compute_minor = attribute(d, dev, CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR);
	now.integrated = attribute(d, dev, CUDA_DEVICE_INTEGRATED);
	now.memory_pools = attribute(d, dev, CUDA_DEVICE_POOL_HANDLE_TYPES) & CUDA_HANDLE_POSIX_FD;
	now.vmm = dev->granularity != 0;
	now.legacy_ipc = legacy_capable(d, dev);
	client_result(info, &now, sizeof(now));
	return 0;
}

TL_API int tl_list_devices(tl_client *client,
			   int (*visit)(const tl_device_usage *usage, void *context), void *context)
{
	struct wire_devices m = { .header = { .type = WIRE_DEVICES, .length = sizeof(m) } };
	struct client_list list;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_devices: %s is NULL", client ? "visit" : "client");
	list = client_list(client, LIST_DEVICES);
	for (;;) {
		struct conn_message answer;
		tl_device_usage usage;
		struct wire_device d;
		int r;

		r = client_request_next(client, &list, &m, "listing GPUs", &answer);
		if (r || answer.header.type == WIRE_DONE)
			return r;
		r = answer_expect(&answer, WIRE_DEVICE, "listing GPUs");
		if (r)
			return r;
		memcpy(&d, answer.bytes, sizeof(d));
		if (d.number < m.from || d.number == UINT32_MAX)
			return tl_fail(-EPROTO, "the daemon told of GPU %u where %u was asked for",
				       d.number, m.from);
		usage = (tl_device_usage){
			.size = sizeof(usage),
			.bytes_used = d.used,
			.capacity = d.capacity,
			.user_capacity = d.user_capacity,
			.segments = d.segments,
		};
		memcpy(usage.uuid, d.device, sizeof(usage.uuid));
		m.from = d.number + 1;
		r = visit(&usage, context);
		if (r)
			return r;
	}
}

TL_API void *tl_cuda_alloc(size_t size, int device, void *stream)
{
	void *memory = NULL;
	int r;

	(void)stream;
	r = size && size <= INT64_MAX
		    ? library_prepare()
		    : tl_fail(-EINVAL,
			      "tl_cuda_alloc: %zu bytes; at least 1 is needed, and at most 2^63 - 1",
			      size);
	if (!r)
		r = cuda_pluggable_new(size, device, &memory);
	if (r)
		errno = -r;
	return memory;
}

TL_API void tl_cuda_free(void *memory, size_t size, int device, void *stream)
{
	int error = errno;

	(void)size;
	(void)device;
	tl_failures_hide();
	if (memory)
		cuda_pluggable_free(memory, (intptr_t)stream);
	tl_failures_show();
	errno = error;
}
