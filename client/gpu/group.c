/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/export.h"
#include "client/gpu/publication.h"
#include "client/gpu/publish.h"
#include "tensor/extent.h"

enum { GROUP_DEVICES = 64 };

/* The part of a group on one GPU. */
struct group_device {
	struct cuda_device *device;
	struct cuda_buffer *buffer; /* the group has a use of it; NULL: no member is in it */
	uint64_t size;
	struct cuda_export *export; /* one that stays until the group ends, or NULL */
	struct cuda_event *event;   /* the group has a use of it; or NULL */
	bool queued;		    /* work that writes the buffer may be on the stream */
};

/* An allocation in which members were found. */
struct group_memory {
	struct cuda_device *device;
	CUdeviceptr base;
	uint64_t size;
	struct cuda_export *export; /* kept by the publication of the first member in it */
};

struct cuda_group {
	unsigned ndevices;
	struct group_device devices[GROUP_DEVICES];
	size_t nmemories;
	struct group_memory *memories;
};

static bool is_ours(const struct group_member *member)
{
	return member->tensor.device.device_type == kDLCUDA;
}

static intptr_t stream_of(const struct members *m)
{
	return cuda_stream_here(m->stream, m->thread);
}

static int group_of(struct members *m, struct cuda_group **out)
{
	if (!m->own)
		m->own = calloc(1, sizeof(struct cuda_group));
	*out = m->own;
	return m->own ? 0 : tl_fail(-ENOMEM, "no memory for a group");
}

/* Finds the group's entry for the GPU with that number, or makes one. Returns 0, or a negative
 * errno. */
static int device_of(struct cuda_group *g, int ordinal, struct group_device **out)
{
	for (unsigned i = 0; i < g->ndevices; i++) {
		*out = &g->devices[i];
		if ((*out)->device->ordinal == ordinal)
			return 0;
	}
	if (g->ndevices == GROUP_DEVICES)
		return tl_fail(-EINVAL, "a group lies on %d GPUs at most", GROUP_DEVICES);
	*out = &g->devices[g->ndevices];
	**out = (struct group_device){ 0 };
	g->ndevices += !cuda_device_at(ordinal, &(*out)->device);
	return (*out)->device ? 0 : -ENODEV;
}

/* ---- Writing ---- */

int cuda_members_allocate(struct members *m, int64_t deadline)
{
	struct cuda_group *g;
	struct group_device *d;
	int r = group_of(m, &g);

	for (size_t i = 0; !r && i < m->count; i++) {
		struct group_member *member = &m->list[i];

		if (!is_ours(member) || member->handed)
			continue;
		r = device_of(g, member->tensor.device.device_id, &d);
		if (r)
			return r;
		if (member->nbytes + d->size > INT64_MAX - TL_ALIGNMENT)
			return tl_fail(-EINVAL, "the group has more than 2^63-1 bytes on GPU %d",
				       d->device->ordinal);
		member->offset = d->size;
		d->size += member->nbytes ? (member->nbytes + TL_ALIGNMENT - 1) / TL_ALIGNMENT *
						    TL_ALIGNMENT
					  : TL_ALIGNMENT;
	}
	for (unsigned i = 0; !r && i < g->ndevices; i++)
		r = cuda_buffer_get(m->session, g->devices[i].device, g->devices[i].size, deadline,
				    &g->devices[i].buffer);
	for (size_t i = 0; !r && i < m->count; i++) {
		struct group_member *member = &m->list[i];

		if (!is_ours(member) || member->handed || !member->nbytes)
			continue;
		device_of(g, member->tensor.device.device_id, &d);
		d->queued = true;
		member->tensor.data = (void *)(uintptr_t)(d->buffer->export->memory.base +
							  member->offset);
	}
	return r;
}

/* Sets *@from_cpu if the source is on the CPU. Then the host has to wait for the copy, since the
 * owner may change the source as soon as the call returns. */
static int copy_one(const struct cuda_scope *scope, const struct members *m,
		    const struct group_member *member, const DLTensor *source, bool *from_cpu)
{
	CUdeviceptr to = (CUdeviceptr)(uintptr_t)member->tensor.data;
	CUdeviceptr from = (CUdeviceptr)(uintptr_t)source->data + source->byte_offset;
	CUresult e;

	if (!tensor_is_contiguous(source))
		return tl_fail(-ENOTSUP,
			       "'%s': a tensor on a GPU must be C-contiguous: make it so first",
			       member->name);
	if (source->device.device_type == kDLCUDA)
		e = scope->driver->memcpy_dtod_async(to, from, member->nbytes,
						     cuda_stream(stream_of(m)));
	else
		e = scope->driver->memcpy_htod_async(to, (const void *)(uintptr_t)from,
						     member->nbytes, cuda_stream(stream_of(m)));
	*from_cpu = *from_cpu || source->device.device_type != kDLCUDA;
	return e ? cuda_fail(e, "copying %" PRIu64 " bytes for '%s'", member->nbytes, member->name)
		 : 0;
}

static int copy_on(const struct group_device *d, const struct members *m,
		   const DLTensor *const *sources)
{
	struct cuda_scope scope;
	bool from_cpu = false;
	int r = cuda_enter(d->device, &scope);

	if (r)
		return r;
	r = cuda_stream_usable(&scope, stream_of(m));
	for (size_t i = 0; !r && i < m->count; i++) {
		const struct group_member *member = &m->list[i];

		if (is_ours(member) && sources[i] && member->tensor.data && !member->handed &&
		    member->tensor.device.device_id == d->device->ordinal)
			r = copy_one(&scope, m, member, sources[i], &from_cpu);
	}
	if (from_cpu && scope.driver->stream_synchronize(cuda_stream(stream_of(m))) && !r)
		r = tl_fail(-EIO, "copying a group to GPU %d failed", d->device->ordinal);
	cuda_leave(&scope);
	return r;
}

int cuda_members_copy(struct members *m, const DLTensor *const *sources)
{
	struct cuda_group *g = m->own;
	bool any = false;
	int r = 0;

	for (unsigned i = 0; i < g->ndevices; i++)
		any = any || g->devices[i].queued;
	if (any && m->stream == TL_STREAM_NONE)
		m->stream = TL_STREAM_LEGACY; /* the legacy stream waits for the others */
	for (unsigned i = 0; !r && i < g->ndevices; i++)
		r = copy_on(&g->devices[i], m, sources);
	return r;
}

/* ---- Placing ---- */

struct handing {
	struct cuda_opening opening;
	struct cuda_located located;
};

static int open_located(struct cuda_opening *opening)
{
	struct handing *h = container_of(opening, struct handing, opening);
	int r = cuda_located_open(&h->located);

	h->opening.parts = h->located.memory.kind == SEGMENT_CUDA_IPC ? NULL : &h->located.parts;
	return r;
}

/* Finds the allocation at @at, exports it if need be, and remembers it. */
static int publish_first(struct members *m, struct group_device *d, struct group_member *member,
			 CUdeviceptr at, struct cuda_publication **out)
{
	struct cuda_group *g = m->own;
	struct handing h = { .opening.open = open_located };
	struct group_memory *more;
	int r = cuda_locate(at, member->nbytes, d->device, TL_STREAM_NONE, &h.located);

	h.opening.memory = &h.located.memory;
	if (!r)
		r = cuda_publication_for(m->session, &h.opening, out);
	if (!r) {
		member->offset = h.located.offset;
		more = reallocarray(g->memories, g->nmemories + 1, sizeof(*more));
		if (more) { /* without, the next member is looked up again */
			g->memories = more;
			g->memories[g->nmemories++] = (struct group_memory){
				d->device,
				h.located.memory.base,
				h.located.memory.size,
				(*out)->export,
			};
		}
	}
	cuda_located_deinit(&h.located);
	return r;
}

/* Allocations do not change during the call, so one that was found before is used again. */
static int publish_handed(struct members *m, struct group_device *d, struct group_member *member,
			  struct cuda_publication **out)
{
	struct cuda_group *g = m->own;
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)member->tensor.data + member->tensor.byte_offset;

	for (size_t i = g->nmemories; i--;) {
		const struct group_memory *memory = &g->memories[i];

		if (memory->device != d->device || at < memory->base ||
		    at - memory->base > memory->size ||
		    member->nbytes > memory->size - (at - memory->base))
			continue;
		member->offset = at - memory->base;
		return cuda_publication_in(memory->export, out);
	}
	return publish_first(m, d, member, at, out);
}

static int place_one(struct members *m, struct group_member *member)
{
	struct cuda_publication *p = NULL;
	struct group_device *d;
	int r = device_of(m->own, member->tensor.device.device_id, &d);

	if (!r)
		r = member->handed ? publish_handed(m, d, member, &p)
				   : cuda_publication_in(d->buffer->export, &p);
	if (r)
		return r;
	if (!member->handed) { /* its work needs the buffer even if the group fails */
		cuda_buffer_use(d->buffer);
		cuda_publication_arm(p, NULL, cuda_buffer_done, d->buffer);
	}
	member->own = p;
	d->export = p->export;
	return 0;
}

/* Makes sure that the work has ended, or that consumers find an event to wait for. */
static int order(struct members *m)
{
	struct cuda_group *g = m->own;
	int r = 0;

	if (m->stream == TL_STREAM_NONE)
		return 0;
	if (g->ndevices > 1 && m->stream != TL_STREAM_DEFAULT && m->stream != TL_STREAM_LEGACY &&
	    m->stream != TL_STREAM_PER_THREAD)
		return tl_fail(-EINVAL,
			       "a group on %u GPUs cannot be written on one stream, which belongs "
			       "to one of them: synchronise, and name TL_STREAM_NONE",
			       g->ndevices);
	for (unsigned i = 0; !r && i < g->ndevices; i++) {
		struct group_device *d = &g->devices[i];

		r = m->sealed ? cuda_wait_for_stream(d->device, stream_of(m))
			      : cuda_event_record(d->device, &d->export->events, stream_of(m),
						  &d->event);
	}
	return r;
}

int cuda_members_place(struct members *m)
{
	struct group_device *d;
	struct cuda_group *g;
	int r = group_of(m, &g);

	for (size_t i = 0; !r && i < m->count; i++)
		if (is_ours(&m->list[i]))
			r = place_one(m, &m->list[i]);
	if (!r)
		r = order(m);
	for (size_t i = 0; !r && i < m->count; i++) {
		struct group_member *member = &m->list[i];

		if (!is_ours(member))
			continue;
		device_of(g, member->tensor.device.device_id, &d);
		cuda_publication_arm(member->own, d->event,
				     member->handed ? cuda_tensor_delete : cuda_buffer_done,
				     member->handed ? (void *)member->handed : d->buffer);
	}
	return r;
}

void cuda_member_message(const struct group_member *member, unsigned char *bytes)
{
	struct tensor_description d = member_description(member);

	cuda_publication_message(member->own, member->offset, &d, bytes);
}

void cuda_member_made(struct group_member *member, uint64_t ref)
{
	cuda_publication_made(member->own, ref);
}

void cuda_members_asked(struct members *m, uint32_t serial)
{
	for (size_t i = 0; i < m->count; i++)
		if (is_ours(&m->list[i]))
			cuda_publication_asked(m->list[i].own, serial);
}

/* ---- The end ---- */

/* Gives up the group's use of a buffer, which is reused when no work and no reader uses it. */
static void leave_buffer(const struct members *m, const struct group_device *d, int end)
{
	if (end == MEMBERS_PARENTS) {
		cuda_buffer_forget(d->buffer);
		return;
	}
	cuda_buffer_leave(d->buffer,
			  end == MEMBERS_FAILED && d->queued ? stream_of(m) : TL_STREAM_NONE);
}

void cuda_members_end(struct members *m, int end)
{
	struct cuda_group *g = m->own;

	if (!g)
		return;
	m->own = NULL;
	for (unsigned i = 0; i < g->ndevices; i++) { /* publications keep the export: first */
		struct group_device *d = &g->devices[i];

		if (!d->event)
			continue;
		pthread_mutex_lock(&cuda_lock);
		cuda_event_unuse(&d->export->events, d->event);
		pthread_mutex_unlock(&cuda_lock);
	}
	for (unsigned i = 0; i < g->ndevices; i++)
		if (g->devices[i].buffer)
			leave_buffer(m, &g->devices[i], end);
	for (size_t i = 0; i < m->count; i++) {
		struct group_member *member = &m->list[i];

		if (is_ours(member) && member->own)
			cuda_publication_end(member->own, (enum members_end)end);
		member->own = NULL;
	}
	free(g->memories);
	free(g);
}
