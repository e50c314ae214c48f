/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/locate.h"
#include "client/error.h"
#include "util/fd.h"

/* The driver's attributes of an address. */
struct pointer {
	unsigned type; /* enum cuda_memory_type */
	int ordinal;
	unsigned managed;
	unsigned legacy;	  /* can be exported by a handle */
	unsigned long long types; /* enum cuda_handle_type */
	CUmemoryPool pool;
};

static int ask(const struct cuda_driver *d, CUdeviceptr at, struct pointer *p)
{
	CUresult e;

	*p = (struct pointer){ .ordinal = -1 };
	e = d->pointer_get_attribute(&p->type, CUDA_POINTER_MEMORY_TYPE, at);
	if (e)
		return cuda_fail(e, "%#llx is not an address that CUDA knows", at);
	e = d->pointer_get_attribute(&p->ordinal, CUDA_POINTER_DEVICE_ORDINAL, at);
	if (e)
		return cuda_fail(e, "asking about the memory at %#llx", at);
	/* An older driver lacks whatever it does not know, except legacy handles. */
	if (d->pointer_get_attribute(&p->managed, CUDA_POINTER_IS_MANAGED, at))
		p->managed = 0;
	if (d->pointer_get_attribute(&p->legacy, CUDA_POINTER_LEGACY_IPC_CAPABLE, at))
		p->legacy = 1;
	if (d->pointer_get_attribute(&p->types, CUDA_POINTER_ALLOWED_HANDLE_TYPES, at))
		p->types = 0;
	if (d->pointer_get_attribute(&p->pool, CUDA_POINTER_POOL, at))
		p->pool = NULL;
	return 0;
}

static const char
	remedy[] = "create it on the GPU with tl_create(), or allow a copy (TL_PUBLISH_STAGING)";

static int choose_kind(const struct pointer *p, const struct cuda_device *device,
		       enum segment_kind *kind)
{
	if (p->managed)
		return tl_fail(-ENOTSUP,
			       "managed memory (cudaMallocManaged) cannot be shared with other "
			       "processes: %s",
			       remedy);
	if (p->type != CUDA_MEMORY_DEVICE)
		return tl_fail(-EINVAL, "the tensor's data is not memory of a GPU (type %u)",
			       p->type);
	if (p->ordinal != device->ordinal)
		return tl_fail(-EINVAL,
			       "the tensor says that it is on GPU %d, but its data is on %d",
			       device->ordinal, p->ordinal);
	if (p->legacy)
		*kind = SEGMENT_CUDA_IPC;
	else if (p->types & CUDA_HANDLE_POSIX_FD)
		*kind = p->pool ? SEGMENT_CUDA_POOL : SEGMENT_CUDA_VMM;
	else if (p->pool)
		return tl_fail(
			-ENOTSUP,
			"memory of a stream-ordered pool (cudaMallocAsync) that was not made "
			"to be exported as POSIX descriptors cannot be shared: %s",
			remedy);
	else
		return tl_fail(
			-ENOTSUP,
			"memory that was not allocated to be exported (cuMemCreate without "
			"POSIX descriptors; PyTorch's expandable_segments of older versions; or this "
			"system has no CUDA IPC) cannot be shared: %s",
			remedy);
	return 0;
}

/* ---- Parts ---- */

static int add_part(struct cuda_memory *m, const struct cuda_part *part)
{
	struct cuda_part *parts;

	if (m->nparts == WIRE_PARTS_MAX)
		return tl_fail(-ENOTSUP, "the tensor spans more than %d allocations: %s",
			       WIRE_PARTS_MAX, remedy);
	parts = reallocarray(m->parts, m->nparts + 1, sizeof(*parts));
	if (!parts)
		return tl_fail(-ENOMEM, "no memory for %u parts", m->nparts + 1);
	m->parts = parts;
	m->parts[m->nparts++] = *part;
	m->size += part->size;
	return 0;
}

enum { LOCATE_E_NOTHING = 1 };

/* Finds virtual memory, which some drivers do not report as an allocation. */
static CUresult find_mapping(const struct cuda_driver *d, CUdeviceptr at, CUdeviceptr *base,
			     size_t *size)
{
	CUresult e = d->pointer_get_attribute(base, CUDA_POINTER_MAPPING_BASE, at);

	if (!e)
		e = d->pointer_get_attribute(size, CUDA_POINTER_MAPPING_SIZE, at);
	return !e && !*size ? CUDA_E_NOT_FOUND : e;
}

/* Finds the allocation at @at; in virtual memory, what one cuMemMap() mapped there. */
static int find_part(const struct cuda_driver *d, CUdeviceptr at, struct cuda_part *part)
{
	static _Atomic uint64_t unknown = UINT64_MAX;
	unsigned long long id = 0;
	size_t size = 0;
	CUresult e;

	e = d->mem_get_address_range(&part->base, &size, at);
	if (e == CUDA_E_NOT_FOUND)
		e = find_mapping(d, at, &part->base, &size);
	if (e == CUDA_E_NOT_FOUND || e == CUDA_E_INVALID_VALUE)
		return LOCATE_E_NOTHING;
	if (e)
		return cuda_fail(e, "asking for the allocation at %#llx", at);
	if (d->pointer_get_attribute(&id, CUDA_POINTER_BUFFER_ID, part->base))
		id = atomic_fetch_sub(&unknown, 1); /* counts as a new allocation each time */
	part->size = size;
	part->id = id;
	return 0;
}

static int find_parts(const struct cuda_driver *d, CUdeviceptr at, uint64_t size,
		      struct cuda_located *out)
{
	struct cuda_memory *m = &out->memory;
	CUdeviceptr next = at;

	do {
		struct cuda_part part;
		int r = find_part(d, next, &part);

		if (r < 0)
			return r;
		if (!r && !m->nparts) {
			m->base = part.base;
			out->offset = at - part.base;
		} else if (r || part.base != next || m->kind != SEGMENT_CUDA_VMM) {
			return tl_fail(-EINVAL,
				       "the tensor has %" PRIu64
				       " bytes at %#llx, but its allocation "
				       "ends after %llu",
				       size, at, next - at);
		}
		r = add_part(m, &part);
		if (r)
			return r;
		next = part.base + part.size;
	} while (next < at + size);
	return 0;
}

int cuda_locate(CUdeviceptr at, uint64_t size, struct cuda_device *device, struct cuda_located *out)
{
	struct cuda_scope scope;
	struct pointer p;
	int r;

	*out = (struct cuda_located){ .memory.device = device };
	memcpy(out->memory.uuid, device->uuid.bytes, sizeof(out->memory.uuid));
	r = cuda_enter(device, &scope);
	if (r)
		return r;
	r = ask(scope.driver, at, &p);
	if (!r)
		r = choose_kind(&p, device, &out->memory.kind);
	if (!r)
		r = find_parts(scope.driver, at, size, out);
	cuda_leave(&scope);
	return r;
}

/* ---- Opening it elsewhere ---- */

static int open_handle(const struct cuda_driver *d, struct cuda_memory *m)
{
	struct cuda_ipc_handle handle;
	CUresult e = d->ipc_get_mem_handle(&handle, m->base);

	if (e)
		return cuda_fail(e, "exporting %" PRIu64 " bytes of GPU %d (%s)", m->size,
				 m->device->ordinal, remedy);
	memcpy(m->handle, handle.bytes, sizeof(m->handle));
	return 0;
}

static int open_pool(const struct cuda_driver *d, struct cuda_located *located)
{
	struct cuda_memory *m = &located->memory;
	struct cuda_pool_pointer pointer;
	CUmemoryPool pool;
	CUresult e;

	e = d->pointer_get_attribute(&pool, CUDA_POINTER_POOL, m->base);
	if (!e)
		e = d->pool_export(&located->fds[0], pool, CUDA_HANDLE_POSIX_FD, 0);
	if (!e)
		e = d->pool_export_pointer(&pointer, m->base);
	if (e)
		return cuda_fail(e, "exporting %" PRIu64 " bytes of a memory pool of GPU %d (%s)",
				 m->size, m->device->ordinal, remedy);
	memcpy(m->handle, pointer.bytes, sizeof(m->handle));
	return 0;
}

static int open_parts(const struct cuda_driver *d, struct cuda_located *located)
{
	const struct cuda_memory *m = &located->memory;

	for (uint32_t i = 0; i < m->nparts; i++) {
		cuda_vmm_handle handle;
		CUresult e;

		e = d->mem_retain_handle(&handle, (void *)(uintptr_t)m->parts[i].base);
		if (!e) {
			e = d->mem_export(&located->fds[i], handle, CUDA_HANDLE_POSIX_FD, 0);
			d->mem_release(handle);
		}
		if (e)
			return cuda_fail(e, "exporting part %u of %u of memory of GPU %d (%s)", i,
					 m->nparts, m->device->ordinal, remedy);
	}
	return 0;
}

int cuda_located_open(struct cuda_located *located)
{
	struct cuda_memory *m = &located->memory;
	struct cuda_scope scope;
	int r;

	if (m->kind != SEGMENT_CUDA_IPC) {
		located->fds = malloc(m->nparts * sizeof(*located->fds));
		if (!located->fds)
			return tl_fail(-ENOMEM, "no memory for %u descriptors", m->nparts);
		for (uint32_t i = 0; i < m->nparts; i++)
			located->fds[i] = -1;
	}
	r = cuda_enter(m->device, &scope);
	if (r)
		return r;
	switch (m->kind) {
	case SEGMENT_CUDA_IPC:
		r = open_handle(scope.driver, m);
		break;
	case SEGMENT_CUDA_POOL:
		r = open_pool(scope.driver, located);
		break;
	default:
		r = open_parts(scope.driver, located);
	}
	cuda_leave(&scope);
	located->opened = !r;
	return r;
}

void cuda_located_deinit(struct cuda_located *located)
{
	for (uint32_t i = 0; located->fds && i < located->memory.nparts; i++)
		fd_close(located->fds[i]);
	free(located->fds);
	free(located->memory.parts);
	located->fds = NULL;
	located->memory.parts = NULL;
}
