/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/error.h"
#include "client/gpu/export.h"
#include "client/gpu/mapping.h"
#include "util/fd.h"

/* The driver's attributes of an address. */
struct pointer {
	unsigned type; /* enum cuda_memory_type */
	int ordinal;
	unsigned managed;
	unsigned legacy;	  /* it can be exported by a handle */
	unsigned long long types; /* enum cuda_handle_type */
	CUmemoryPool pool;
	/* Ids of the allocation, which are never reused in a process. For virtual memory `buffer`
	 * may mean the reservation, so `block` says what is mapped there. */
	unsigned long long buffer, block;
};

enum { ATTRIBUTES = 8 };

/* Asks for all attributes with one call, or one by one if an older driver does not know them all. A
 * driver has no feature whose attribute it does not know, except for legacy handles. */
static CUresult ask_all(const struct cuda_driver *d, CUdeviceptr at, struct pointer *p)
{
	static _Atomic bool one_by_one;
	int which[ATTRIBUTES] = { CUDA_POINTER_MEMORY_TYPE,
				  CUDA_POINTER_DEVICE_ORDINAL,
				  CUDA_POINTER_IS_MANAGED,
				  CUDA_POINTER_LEGACY_IPC_CAPABLE,
				  CUDA_POINTER_ALLOWED_HANDLE_TYPES,
				  CUDA_POINTER_POOL,
				  CUDA_POINTER_BUFFER_ID,
				  CUDA_POINTER_BLOCK_ID };
	void *values[ATTRIBUTES] = { &p->type,	&p->ordinal, &p->managed, &p->legacy,
				     &p->types, &p->pool,    &p->buffer,  &p->block };
	CUresult e = CUDA_OK;

	*p = (struct pointer){ .ordinal = -1 };
	if (!atomic_load(&one_by_one)) {
		e = d->pointer_get_attributes(ATTRIBUTES, which, values, at);
		if (e != CUDA_E_INVALID_VALUE)
			return !e && !p->type ? CUDA_E_INVALID_VALUE : e;
		*p = (struct pointer){ .ordinal = -1 };
	}
	e = d->pointer_get_attribute(&p->type, CUDA_POINTER_MEMORY_TYPE, at);
	if (e)
		return e; /* the driver does not know the address */
	atomic_store(&one_by_one, true);
	p->legacy = 1;
	for (int i = 1; i < ATTRIBUTES; i++)
		d->pointer_get_attribute(values[i], which[i], at);
	return CUDA_OK;
}

static int ask(const struct cuda_driver *d, CUdeviceptr at, struct pointer *p)
{
	CUresult e = ask_all(d, at, p);

	return e ? cuda_fail(e, "%#llx is not an address that CUDA knows", at) : 0;
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
	else if (p->types & CUDA_HANDLE_FABRIC)
		return tl_fail(
			-ENOTSUP,
			"memory that was allocated to be exported by fabric handles only, as "
			"PyTorch's expandable_segments does where IMEX runs, cannot be shared "
			"(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False makes plain memory, "
			"which can): %s",
			remedy);
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
		return tl_fail(-ENOTSUP,
			       "the tensor spans more than %d allocations, which is the limit: %s",
			       WIRE_PARTS_MAX, remedy);
	if ((m->nparts & (m->nparts - 1)) == 0) { /* the space is always a power of two */
		parts = reallocarray(m->parts, m->nparts ? 2 * m->nparts : 1, sizeof(*parts));
		if (!parts)
			return tl_fail(-ENOMEM, "no memory for %u parts", m->nparts + 1);
		m->parts = parts;
	}
	m->parts[m->nparts++] = *part;
	m->size += part->size;
	return 0;
}

enum { LOCATE_E_NOTHING = 1 };

/* A cache from an allocation's id to its place, which never changes. Finding a tensor that is
 * published again needs no call then. Only for memory in one piece. */
enum { KNOWN = 256 };
static struct {
	const struct cuda_device *device;
	unsigned life;
	struct cuda_part part;
} known[KNOWN];
static pthread_mutex_t known_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool known_find(const struct cuda_device *device, uint64_t id, CUdeviceptr at,
		       struct cuda_part *part)
{
	bool found;

	pthread_mutex_lock(&known_mutex);
	*part = known[id % KNOWN].part;
	found = id && part->id == id && known[id % KNOWN].device == device &&
		known[id % KNOWN].life == atomic_load(&device->life) && at >= part->base &&
		at - part->base < part->size;
	pthread_mutex_unlock(&known_mutex);
	return found;
}

static void known_add(const struct cuda_device *device, const struct cuda_part *part)
{
	pthread_mutex_lock(&known_mutex);
	known[part->id % KNOWN].device = device;
	known[part->id % KNOWN].life = atomic_load(&device->life);
	known[part->id % KNOWN].part = *part;
	pthread_mutex_unlock(&known_mutex);
}

/* Finds virtual memory, which some drivers do not report as an allocation. */
static CUresult find_mapping(const struct cuda_driver *d, CUdeviceptr at, CUdeviceptr *base,
			     size_t *size)
{
	CUresult e = d->pointer_get_attribute(base, CUDA_POINTER_MAPPING_BASE, at);

	if (!e)
		e = d->pointer_get_attribute(size, CUDA_POINTER_MAPPING_SIZE, at);
	return !e && !*size ? CUDA_E_NOT_FOUND : e;
}

static CUresult find_range(const struct cuda_driver *d, CUdeviceptr at, struct cuda_part *part)
{
	size_t size = 0;
	CUresult e = d->mem_get_address_range(&part->base, &size, at);

	if (e == CUDA_E_NOT_FOUND)
		e = find_mapping(d, at, &part->base, &size);
	part->size = size;
	return e;
}

/*
 * Finds the allocation at @at; in virtual memory, the range that one cuMemMap() mapped. @p has its
 * attributes, or is NULL.
 */
static int find_part(const struct cuda_driver *d, const struct cuda_located *out, CUdeviceptr at,
		     const struct pointer *p, struct cuda_part *part)
{
	static _Atomic uint64_t unknown = UINT64_MAX;
	bool vmm = out->memory.kind == SEGMENT_CUDA_VMM;
	unsigned long long id = p ? vmm ? p->block : p->buffer : 0;
	CUresult e;

	if (!vmm && known_find(out->memory.device, id, at, part))
		return 0;
	e = find_range(d, at, part);
	if (e == CUDA_E_NOT_FOUND || e == CUDA_E_INVALID_VALUE)
		return LOCATE_E_NOTHING;
	if (e)
		return cuda_fail(e, "asking for the allocation at %#llx", at);
	if (!p && d->pointer_get_attribute(&id, CUDA_POINTER_BLOCK_ID, part->base))
		id = 0;
	part->id = id ? id : atomic_fetch_sub(&unknown, 1); /* no id: always a new one */
	if (!vmm && id)
		known_add(out->memory.device, part);
	return 0;
}

static int find_parts(const struct cuda_driver *d, CUdeviceptr at, uint64_t size,
		      const struct pointer *p, struct cuda_located *out)
{
	struct cuda_memory *m = &out->memory;
	CUdeviceptr next = at;

	do {
		struct cuda_part part;
		int r = find_part(d, out, next, next == at ? p : NULL, &part);

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

/* Sets *@idle if all work on the stream has ended, so that no consumer must wait. 0, or -errno. */
static int look_at_stream(const struct cuda_scope *scope, intptr_t stream, bool *idle)
{
	CUresult e;
	int r;

	if (stream == TL_STREAM_NONE || cuda_stream_is_shared(cuda_stream(stream)))
		return 0;
	r = cuda_stream_usable(scope, stream);
	if (r || !cuda_stream_tells(scope, cuda_stream(stream)))
		return r;
	e = scope->driver->stream_query(cuda_stream(stream));
	*idle = e == CUDA_OK;
	return e && e != CUDA_E_NOT_READY
		       ? cuda_fail(e, "asking for stream %#llx", (unsigned long long)stream)
		       : 0;
}

/* Refuses memory of another process, because only its producer knows when it is reused. */
static int not_got(CUdeviceptr at, uint64_t size)
{
	if (!cuda_mapping_has(at, size))
		return 0;
	return tl_fail(-ENOTSUP,
		       "memory that was got from another process cannot be published in place: "
		       "pass the tensor of tl_get() to tl_publish(), or allow a copy "
		       "(TL_PUBLISH_STAGING, tl_put_many())");
}

int cuda_locate(CUdeviceptr at, uint64_t size, struct cuda_device *device, intptr_t stream,
		struct cuda_located *out)
{
	struct cuda_scope scope;
	struct pointer p;
	int r;

	*out = (struct cuda_located){ .memory.device = device, .pool_fd = -1 };
	memcpy(out->memory.uuid, device->uuid.bytes, sizeof(out->memory.uuid));
	r = cuda_enter(device, &scope);
	if (r)
		return r;
	r = not_got(at, size); /* after cuda_enter(), which notices that a reset has closed it */
	if (!r)
		r = ask(scope.driver, at, &p);
	if (!r)
		r = choose_kind(&p, device, &out->memory.kind);
	if (!r && out->memory.kind == SEGMENT_CUDA_POOL)
		out->memory.pool = p.pool;
	if (!r)
		r = find_parts(scope.driver, at, size, &p, out);
	if (!r)
		r = look_at_stream(&scope, stream, &out->idle);
	cuda_leave(&scope);
	return r;
}

/* ---- Opening memory elsewhere ---- */

/* Returns the errno of a failed export; the caller sets the text. If the driver refuses an export
 * that it had reported as possible, a copy can still be published. */
static int export_errno(CUresult e)
{
	switch (e) {
	case CUDA_E_INVALID_VALUE:
	case CUDA_E_OPERATING_SYSTEM:
	case CUDA_E_NOT_PERMITTED:
	case CUDA_E_UNKNOWN:
		return -ENOTSUP;
	default:
		return cuda_errno(e);
	}
}

static int open_handle(const struct cuda_driver *d, struct cuda_memory *m)
{
	struct cuda_ipc_handle handle;
	CUresult e = d->ipc_get_mem_handle(&handle, m->base);

	if (e)
		return tl_fail(export_errno(e), "exporting %" PRIu64 " bytes of GPU %d (%s): %s",
			       m->size, m->device->ordinal, remedy, cuda_error_text(e));
	memcpy(m->handle, handle.bytes, sizeof(m->handle));
	return 0;
}

static int open_pool(const struct cuda_driver *d, struct cuda_located *located)
{
	struct cuda_memory *m = &located->memory;
	struct cuda_pool_pointer pointer;
	CUresult e = CUDA_OK;

	pthread_mutex_lock(&cuda_lock);
	located->pool_fd = cuda_export_pool_fd(m->pool);
	pthread_mutex_unlock(&cuda_lock);
	if (located->pool_fd < 0)
		e = d->pool_export(&located->pool_fd, m->pool, CUDA_HANDLE_POSIX_FD, 0);
	if (!e)
		e = d->pool_export_pointer(&pointer, m->base);
	if (e)
		return tl_fail(export_errno(e),
			       "exporting %" PRIu64 " bytes of a memory pool of GPU %d (%s): %s",
			       m->size, m->device->ordinal, remedy, cuda_error_text(e));
	memcpy(m->handle, pointer.bytes, sizeof(m->handle));
	return 0;
}

/* Opens the only part, whose descriptor is the pool's. */
static int open_pool_part(struct cuda_parts *parts, uint32_t part, int *fd)
{
	const struct cuda_located *located = container_of(parts, struct cuda_located, parts);

	(void)part;
	*fd = fcntl(located->pool_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	return *fd < 0 ? tl_fail(-errno, "making a descriptor of a memory pool: %m") : 0;
}

static int open_part(struct cuda_parts *parts, uint32_t part, int *fd)
{
	const struct cuda_memory *m = &container_of(parts, struct cuda_located, parts)->memory;
	struct cuda_scope scope;
	cuda_vmm_handle handle;
	CUresult e;
	int r = cuda_enter(m->device, &scope);

	if (r)
		return r;
	*fd = -1;
	e = scope.driver->mem_retain_handle(&handle, (void *)(uintptr_t)m->parts[part].base);
	if (!e) {
		e = scope.driver->mem_export(fd, handle, CUDA_HANDLE_POSIX_FD, 0);
		scope.driver->mem_release(handle);
	}
	cuda_leave(&scope);
	return e ? tl_fail(export_errno(e), "exporting part %u of %u of memory of GPU %d (%s): %s",
			   part, m->nparts, m->device->ordinal, remedy, cuda_error_text(e))
		 : 0;
}

int cuda_located_open(struct cuda_located *located)
{
	struct cuda_memory *m = &located->memory;
	struct cuda_scope scope;
	int r = 0;

	located->parts.open = m->kind == SEGMENT_CUDA_POOL ? open_pool_part : open_part;
	if (m->kind != SEGMENT_CUDA_VMM) {
		r = cuda_enter(m->device, &scope);
		if (r)
			return r;
		r = m->kind == SEGMENT_CUDA_IPC ? open_handle(scope.driver, m)
						: open_pool(scope.driver, located);
		cuda_leave(&scope);
	}
	located->opened = !r;
	return r;
}

void cuda_located_deinit(struct cuda_located *located)
{
	located->pool_fd = fd_close(located->pool_fd);
	free(located->memory.parts);
	located->memory.parts = NULL;
}
