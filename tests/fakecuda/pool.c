/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered pools: a memfd each, of a fixed size that is only address space until it is
 * written. An imported pool is the same memfd; an imported pointer is an offset in it.
 */
#include "tests/fakecuda/stream.h"

#define POOL_SIZE ((size_t)256 << 20)
#define ALIGNMENT ((size_t)512)

static CUmemoryPool pools;
static CUmemoryPool defaults[FAKE_DEVICES];

static CUresult supported(void)
{
	return fake_flag("FAKECUDA_NO_POOLS") ? CUDA_E_NOT_SUPPORTED : CUDA_OK;
}

static bool pool_known(CUmemoryPool pool)
{
	for (CUmemoryPool p = pools; p; p = p->next)
		if (p == pool)
			return !p->destroyed;
	return false;
}

static CUmemoryPool pool_add_take(int fd, int device, int handle_types, bool imported)
{
	CUmemoryPool pool = calloc(1, sizeof(*pool));
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 2048);

	if (high >= 0)
		close(fd);
	*pool = (struct CUmemPoolHandle_st){
		.next = pools,
		.id = fake_id(),
		.fd = high >= 0 ? high : fd,
		.device = device,
		.handle_types = handle_types,
		.size = POOL_SIZE,
		.base = va_take(POOL_SIZE),
		.imported = imported,
	};
	if (!pool->base || mmap(pool->base, POOL_SIZE, PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_FIXED, pool->fd, 0) == MAP_FAILED)
		abort(); /* no test runs out of addresses */
	pools = pool;
	return pool;
}

static CUmemoryPool pool_new(int device, int handle_types)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "fakecuda-pool-%d", fake.physical[device]);
	fd = fake_memfd(name, POOL_SIZE);
	if (fd < 0)
		return NULL;
	return pool_add_take(fd, device, handle_types, false);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct cuda_pool_props *props)
{
	ENTER_LOCKED();

	if (supported())
		return fake_leave(supported());
	if (!pool || !props || props->type != CUDA_ALLOCATION_PINNED ||
	    props->handle_types & ~CUDA_HANDLE_POSIX_FD ||
	    props->location.type != CUDA_LOCATION_DEVICE || props->location.id < 0 ||
	    props->location.id >= fake.devices)
		return fake_leave(CUDA_E_INVALID_VALUE);
	*pool = pool_new(props->location.id, props->handle_types);
	if (!*pool)
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	fake_live(FAKE_POOL, 1);
	return fake_leave(CUDA_OK);
}

/* Ends a pool that was destroyed, if nothing is allocated from it. */
static void pool_free_if_unused(CUmemoryPool pool)
{
	CUmemoryPool *p = &pools;

	if (!pool->destroyed)
		return;
	for (struct range *r = fake.ranges; r; r = r->next)
		if (r->pool == pool)
			return;
	while (*p != pool)
		p = &(*p)->next;
	*p = pool->next;
	va_give(pool->base, pool->size);
	close(pool->fd);
	free(pool);
	fake_live(FAKE_POOL, -1);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER_LOCKED();

	if (!pool_known(pool) || pool == defaults[pool->device])
		return fake_leave(CUDA_E_INVALID_VALUE);
	stream_device_wait(pool->device, FAKE_CLOSING_BESIDE_WORK);
	pool->destroyed = true;
	pool_free_if_unused(pool);
	return fake_leave(CUDA_OK);
}

/* ---- Allocations ---- */

static char *pool_gap(CUmemoryPool pool, size_t size)
{
	char *at = pool->base;
	struct range *r = fake.ranges;

	while (r) {
		if (r->pool != pool || at >= r->base + r->size || at + size <= r->base) {
			r = r->next;
			continue;
		}
		at = r->base + (r->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
		r = fake.ranges; /* starts over from the first */
	}
	return size <= pool->size && at + size <= pool->base + pool->size ? at : NULL;
}

static CUresult pool_alloc(CUdeviceptr *pointer, size_t size, CUmemoryPool pool)
{
	struct range *range;
	char *base;

	if (!pointer || !size || pool->imported)
		return CUDA_E_INVALID_VALUE;
	base = pool_gap(pool, size);
	if (!base || fake_charge(pool->device, size))
		return CUDA_E_OUT_OF_MEMORY;
	range = range_add(FAKE_POOL_ALLOCATION, base, size, pool->device);
	range->pool = pool;
	if (!shared_add(range, 0, 0)) {
		fake_uncharge(pool->device, size);
		range_remove(range);
		return CUDA_E_OUT_OF_MEMORY;
	}
	*pointer = (CUdeviceptr)(uintptr_t)base;
	return CUDA_OK;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool,
				 CUstream stream)
{
	ENTER_CONTEXT(ctx);
	CUresult r = supported();

	if (!r)
		r = stream_resolve(&stream, ctx);
	if (!r && !pool_known(pool))
		r = CUDA_E_INVALID_VALUE;
	return fake_leave(r ? r : pool_alloc(pointer, size, pool));
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	CUresult r = supported();

	if (!r)
		r = stream_resolve(&stream, ctx);
	if (!r && !defaults[ctx->device])
		defaults[ctx->device] = pool_new(ctx->device, CUDA_HANDLE_NONE);
	if (!r && !defaults[ctx->device])
		r = CUDA_E_OUT_OF_MEMORY;
	return fake_leave(r ? r : pool_alloc(pointer, size, defaults[ctx->device]));
}

/* This happens also when nobody has it open: a read after a free never finds the old bytes. */
void pool_range_free(struct range *range)
{
	CUmemoryPool pool = range->pool;

	if (range->kind == FAKE_POOL_IMPORT) {
		open_remove(range->shared_id);
	} else {
		shared_end(range);
		fake_uncharge(range->device, range->size);
		fake_poison(range->pool->fd, (uint64_t)(range->base - range->pool->base),
			    range->size);
	}
	range_remove(range);
	pool_free_if_unused(pool);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	struct range *range = range_of(pointer);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && (!range || (CUdeviceptr)(uintptr_t)range->base != pointer ||
		   (range->kind != FAKE_POOL_ALLOCATION && range->kind != FAKE_POOL_IMPORT)))
		r = CUDA_E_INVALID_VALUE;
	if (!r && !range->opens)
		r = CUDA_E_INVALID_VALUE; /* it is freed already, but the work that frees it is not
					     done */
	if (!r)
		range->opens = 0;
	return fake_leave(
		r ? r : stream_submit(stream, &(struct op){ .type = OP_FREE, .range = range }));
}

/* ---- Sharing ---- */

struct pool_pointer {
	uint32_t magic;
	uint32_t reserved;
	uint64_t id, offset, size;
};
enum { POOL_MAGIC = 0x504f4f4c };

CUresult cuMemPoolExportToShareableHandle(void *os_handle, CUmemoryPool pool, int type,
					  unsigned long long flags)
{
	ENTER_LOCKED();
	char path[64];
	int fd;

	if (!os_handle || !pool_known(pool) || pool->imported || flags ||
	    type != CUDA_HANDLE_POSIX_FD || !(pool->handle_types & CUDA_HANDLE_POSIX_FD))
		return fake_leave(CUDA_E_INVALID_VALUE);
	/* Each export is an open file of its own, which nothing tells from that of another pool. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", pool->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return fake_leave(CUDA_E_OPERATING_SYSTEM);
	*(int *)os_handle = fd;
	return fake_leave(CUDA_OK);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *os_handle, int type,
					    unsigned long long flags)
{
	ENTER_LOCKED();
	char path[64], target[128] = "";
	int fd = (int)(intptr_t)os_handle, physical = -1;

	if (supported())
		return fake_leave(supported());
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!pool || type != CUDA_HANDLE_POSIX_FD || flags ||
	    readlink(path, target, sizeof(target) - 1) < 0 ||
	    sscanf(target, "/memfd:fakecuda-pool-%d", &physical) != 1)
		return fake_leave(CUDA_E_INVALID_VALUE);
	if (fake_ordinal(physical) < 0)
		return fake_leave(CUDA_E_INVALID_DEVICE);
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return fake_leave(CUDA_E_OPERATING_SYSTEM);
	*pool = pool_add_take(fd, fake_ordinal(physical), CUDA_HANDLE_NONE, true);
	fake_live(FAKE_POOL, 1);
	return fake_leave(CUDA_OK);
}

CUresult cuMemPoolExportPointer(struct cuda_pool_pointer *data, CUdeviceptr pointer)
{
	ENTER_LOCKED();
	struct range *range = range_of(pointer);
	struct pool_pointer p = { .magic = POOL_MAGIC };

	if (!data || !range || range->kind != FAKE_POOL_ALLOCATION ||
	    !(range->pool->handle_types & CUDA_HANDLE_POSIX_FD))
		return fake_leave(CUDA_E_INVALID_VALUE);
	p.id = range->shared_id;
	p.offset = (uint64_t)(range->base - range->pool->base);
	p.size = range->size;
	memset(data, 0, sizeof(*data));
	memcpy(data, &p, sizeof(p));
	return fake_leave(CUDA_OK);
}

/* Where it is open in this process, whichever import of the pool it was opened in. */
static struct range *import_of(uint64_t id, int device)
{
	struct range *r = fake.ranges;

	while (r && (r->kind != FAKE_POOL_IMPORT || r->shared_id != id || r->device != device))
		r = r->next;
	return r;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
				struct cuda_pool_pointer *data)
{
	ENTER_LOCKED();
	struct pool_pointer p;
	struct range *range;

	if (!pointer || !data || !pool_known(pool) || !pool->imported)
		return fake_leave(CUDA_E_INVALID_VALUE);
	memcpy(&p, data, sizeof(p));
	if (p.magic != POOL_MAGIC || p.offset + p.size > pool->size || !shared_exists(p.id))
		return fake_leave(CUDA_E_INVALID_VALUE);
	range = import_of(p.id, pool->device);
	if (range) { /* this does not count: the first free ends it for all */
		*pointer = (CUdeviceptr)(uintptr_t)range->base;
		return fake_leave(CUDA_OK);
	}
	if (range_of((CUdeviceptr)(uintptr_t)(pool->base + p.offset)))
		return fake_leave(CUDA_E_INVALID_VALUE); /* what was there before is open */
	if (!open_add(p.id))
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	range = range_add(FAKE_POOL_IMPORT, pool->base + p.offset, p.size, pool->device);
	range->pool = pool;
	range->shared_id = p.id;
	*pointer = (CUdeviceptr)(uintptr_t)range->base;
	return fake_leave(CUDA_OK);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const struct cuda_access *access, size_t n)
{
	ENTER_LOCKED();

	if (!pool_known(pool) || (n && !access))
		return fake_leave(CUDA_E_INVALID_VALUE);
	for (size_t i = 0; i < n; i++)
		if (access[i].location.type != CUDA_LOCATION_DEVICE || access[i].location.id < 0 ||
		    access[i].location.id >= fake.devices)
			return fake_leave(CUDA_E_INVALID_VALUE);
	return fake_leave(CUDA_OK);
}
