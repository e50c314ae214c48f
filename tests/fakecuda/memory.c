/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses, legacy allocations and their IPC, managed memory, and attributes of pointers.
 *
 * Like in the real driver, allocations under 2 MiB share a block of that size: the handle of one
 * exports the block, so importers can reach its neighbours, and opens to the allocation's own base.
 * Freed addresses are used again at once, the last freed first.
 */
#include "tests/fakecuda/fake.h"

#include <assert.h>

#define ALIGNMENT ((size_t)512)

struct hole {
	struct hole *next;
	char *base;
	size_t size;
};
static struct hole *holes;
static struct block *blocks;

static size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* ---- Addresses ---- */

/* Reserves @size bytes of address space at a multiple of 2 MiB, not accessible. NULL: there is
 * none. */
char *va_take(size_t size)
{
	const size_t unit = FAKE_GRANULARITY;
	char *base, *aligned;

	size = round_up(size, unit);
	for (struct hole **h = &holes; *h; h = &(*h)->next) {
		struct hole *hole = *h;

		if (hole->size != size)
			continue;
		*h = hole->next;
		base = hole->base;
		free(hole);
		return base;
	}
	base = mmap(NULL, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		    0);
	if (base == MAP_FAILED)
		return NULL;
	aligned = base + (unit - (uintptr_t)base % unit) % unit;
	if (aligned > base)
		munmap(base, (size_t)(aligned - base));
	if (base + unit > aligned)
		munmap(aligned + size, (size_t)(base + unit - aligned));
	return aligned;
}

/* Any access faults from here on. */
void va_hide(char *base, size_t size)
{
	if (mmap(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		abort();
}

void va_give(char *base, size_t size)
{
	struct hole *hole = calloc(1, sizeof(*hole));

	size = round_up(size, FAKE_GRANULARITY);
	va_hide(base, size);
	*hole = (struct hole){ .next = holes, .base = base, .size = size };
	holes = hole;
}

struct range *range_add(enum fake_kind kind, char *base, size_t size, int device)
{
	struct range *range = calloc(1, sizeof(*range));

	range->kind = kind;
	range->base = base;
	range->size = size;
	range->device = device;
	range->buffer_id = fake_id();
	range->opens = 1;
	memset(range->access, CUDA_ACCESS_READ_WRITE, sizeof(range->access));
	range->next = fake.ranges;
	fake.ranges = range;
	fake_live(kind, 1);
	return range;
}

struct range *range_of(CUdeviceptr pointer)
{
	const char *p = (const char *)(uintptr_t)pointer;

	for (struct range *r = fake.ranges; r; r = r->next)
		if (p >= r->base && p < r->base + r->size)
			return r;
	return NULL;
}

void range_remove(struct range *range)
{
	struct range **r = &fake.ranges;

	while (*r != range)
		r = &(*r)->next;
	*r = range->next;
	fake_live(range->kind, -1);
	free(range);
}

bool range_covers(CUdeviceptr pointer, size_t size)
{
	CUdeviceptr end = pointer + size;

	while (pointer < end) {
		struct range *r = range_of(pointer);

		if (!r)
			return false;
		pointer = (CUdeviceptr)(uintptr_t)(r->base + r->size);
	}
	return true;
}

/* Says whether @device may access it so. What no device may do faults by the memory's protection.
 */
bool range_allows(CUdeviceptr pointer, size_t size, int device, int access)
{
	CUdeviceptr end = pointer + size;

	while (pointer < end) {
		struct range *r = range_of(pointer);
		int any = 0;

		if (!r)
			return false;
		for (int i = 0; i < fake.devices; i++)
			any |= r->access[i];
		if ((r->access[device] & access) != access && (any & access) == access)
			return false;
		pointer = (CUdeviceptr)(uintptr_t)(r->base + r->size);
	}
	return true;
}

/* ---- What other processes may open ---- */

bool shared_add(struct range *range, uint64_t block, uint64_t offset)
{
	struct fake_registry *reg = fake.registry;
	bool added = false;

	fake_lock(reg);
	for (int i = 0; i < FAKE_ALLOCATIONS && !added; i++) {
		if (reg->allocations[i].id)
			continue;
		range->shared_id = ++reg->next_id;
		reg->allocations[i] = (struct fake_allocation){
			.id = range->shared_id,
			.owner = fake.self,
			.device = fake.physical[range->device],
			.block = block,
			.offset = offset,
			.size = range->size,
		};
		added = true;
	}
	fake_unlock(reg);
	return added;
}

static struct fake_allocation *shared_find(uint64_t id)
{
	for (int i = 0; i < FAKE_ALLOCATIONS; i++)
		if (fake.registry->allocations[i].id == id)
			return &fake.registry->allocations[i];
	return NULL;
}

void shared_end(struct range *range)
{
	struct fake_allocation *a;

	if (!range->shared_id)
		return;
	fake_lock(fake.registry);
	fake_reap(fake.registry);
	a = shared_find(range->shared_id);
	if (a) {
		fake_allocation_end(fake.registry, a, FAKE_FREED_WHILE_OPEN);
		a->block = 0;
	}
	fake_unlock(fake.registry);
}

bool shared_exists(uint64_t id)
{
	bool exists;

	fake_lock(fake.registry);
	fake_reap(fake.registry);
	exists = shared_find(id) != NULL;
	fake_unlock(fake.registry);
	return exists;
}

bool open_add(uint64_t id)
{
	bool added = false;

	fake_lock(fake.registry);
	for (int i = 0; i < FAKE_OPENS && !added; i++) {
		if (fake.registry->opens[i].id)
			continue;
		fake.registry->opens[i] = (struct fake_open){ .id = id, .process = fake.self };
		added = true;
	}
	fake_unlock(fake.registry);
	return added;
}

void open_remove(uint64_t id)
{
	fake_lock(fake.registry);
	for (int i = 0; i < FAKE_OPENS; i++) {
		struct fake_open *o = &fake.registry->opens[i];

		if (o->id != id || o->process != fake.self)
			continue;
		o->id = 0;
		break;
	}
	fake_unlock(fake.registry);
}

/* ---- Blocks ---- */

static bool block_map(struct block *block, int flags)
{
	char path[PATH_MAX];
	bool mapped;
	int fd;

	fake_block_path(path, block->id);
	fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
	if (fd < 0)
		return false;
	block->base = va_take(block->size);
	mapped = block->base && (!flags || !ftruncate(fd, (off_t)block->size)) &&
		 mmap(block->base, block->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		      0) != MAP_FAILED;
	close(fd);
	if (!mapped && block->base)
		va_give(block->base, block->size);
	return mapped;
}

static struct block *block_add(struct CUctx_st *ctx, uint64_t id, size_t size, int device,
			       bool imported)
{
	struct block *block = calloc(1, sizeof(*block));

	*block = (struct block){
		.id = id, .size = size, .ctx = ctx, .device = device, .imported = imported
	};
	if (!block_map(block, imported ? 0 : O_CREAT | O_EXCL)) {
		free(block);
		return NULL;
	}
	block->next = blocks;
	blocks = block;
	return block;
}

static void block_drop(struct block *block)
{
	struct block **b = &blocks;
	char path[PATH_MAX];

	if (--block->users)
		return;
	while (*b != block)
		b = &(*b)->next;
	*b = block->next;
	if (!block->imported) {
		fake_block_path(path, block->id);
		unlink(path);
	}
	va_give(block->base, block->size);
	free(block);
}

/* Returns the first gap of @size bytes in a block, or NULL. */
static char *block_gap(const struct block *block, size_t size)
{
	char *at = block->base;
	struct range *r = fake.ranges;

	while (r && at + size <= block->base + block->size) {
		if (r->block != block || at >= r->base + round_up(r->size, ALIGNMENT) ||
		    at + size <= r->base) {
			r = r->next;
			continue;
		}
		at = r->base + round_up(r->size, ALIGNMENT);
		r = fake.ranges; /* starts over from the first */
	}
	return at + size <= block->base + block->size ? at : NULL;
}

static char *allocate(struct CUctx_st *ctx, size_t size, struct block **found)
{
	size = round_up(size, ALIGNMENT);
	if (size < FAKE_GRANULARITY) {
		for (struct block *b = blocks; b; b = b->next) {
			char *at = b->ctx == ctx && !b->imported && b->size == FAKE_GRANULARITY
					   ? block_gap(b, size)
					   : NULL;

			*found = b;
			if (at)
				return at;
		}
	}
	*found = block_add(ctx, fake_id(), round_up(size, FAKE_GRANULARITY), ctx->device, false);
	return *found ? (*found)->base : NULL;
}

/* ---- Allocations ---- */

static CUresult alloc(CUdeviceptr *pointer, size_t size, struct CUctx_st *ctx)
{
	struct block *block = NULL;
	struct range *range;
	char *base;

	if (fake_charge(ctx->device, size))
		return CUDA_E_OUT_OF_MEMORY;
	base = allocate(ctx, size, &block);
	if (!base) {
		fake_uncharge(ctx->device, size);
		return CUDA_E_OUT_OF_MEMORY;
	}
	range = range_add(FAKE_ALLOCATION, base, size, ctx->device);
	range->block = block;
	range->ctx = ctx;
	block->users++;
	if (!shared_add(range, block->id, (uint64_t)(base - block->base))) {
		range_remove(range);
		block_drop(block);
		fake_uncharge(ctx->device, size);
		return CUDA_E_OUT_OF_MEMORY;
	}
	*pointer = (CUdeviceptr)(uintptr_t)base;
	return CUDA_OK;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();

	if (!r && (!pointer || !size))
		r = CUDA_E_INVALID_VALUE;
	return fake_leave(r ? r : alloc(pointer, size, ctx));
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
	ENTER_CONTEXT(ctx);
	struct range *range;
	char *base;

	if (!pointer || !size || (flags != CUDA_MEM_ATTACH_GLOBAL && flags != 2))
		return fake_leave(CUDA_E_INVALID_VALUE);
	base = va_take(size);
	if (!base || fake_charge(ctx->device, size))
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	mprotect(base, round_up(size, FAKE_GRANULARITY), PROT_READ | PROT_WRITE);
	range = range_add(FAKE_MANAGED, base, size, ctx->device);
	range->ctx = ctx;
	*pointer = (CUdeviceptr)(uintptr_t)base;
	return fake_leave(CUDA_OK);
}

static void range_end(struct range *range)
{
	struct block *block = range->block;

	if (range->kind == FAKE_IMPORT) {
		open_remove(range->shared_id);
	} else {
		shared_end(range);
		fake_uncharge(range->device, range->size);
	}
	if (range->kind == FAKE_MANAGED)
		va_give(range->base, range->size);
	range_remove(range);
	if (block)
		block_drop(block);
}

static struct range *range_at(CUdeviceptr pointer)
{
	struct range *range = range_of(pointer);

	return range && (CUdeviceptr)(uintptr_t)range->base == pointer ? range : NULL;
}

/* Waits for all work of the context, which is what the real one amounts to. */
CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();
	struct range *range = range_at(pointer);

	if (r || !pointer)
		return fake_leave(r);
	if (range)
		stream_device_wait(range->device,
				   range->pool ? FAKE_CLOSING_BESIDE_WORK : FAKE_CLOSING_BARS_WORK);
	range = range_at(pointer);
	if (range && (range->kind == FAKE_ALLOCATION || range->kind == FAKE_MANAGED))
		range_end(range);
	else if (range && (range->kind == FAKE_POOL_ALLOCATION || range->kind == FAKE_POOL_IMPORT))
		pool_range_free(range);
	else
		r = CUDA_E_INVALID_VALUE;
	return fake_leave(r);
}

void memory_context_end(struct CUctx_st *ctx)
{
	for (struct range *r = fake.ranges; r;) {
		struct range *next = r->next;

		if (r->ctx == ctx && (r->kind == FAKE_ALLOCATION || r->kind == FAKE_MANAGED ||
				      r->kind == FAKE_IMPORT))
			range_end(r);
		r = next;
	}
}

/* ---- Legacy IPC ---- */

struct mem_handle {
	uint32_t magic;
	int32_t device;
	uint64_t id, block, block_size, offset, size;
	int32_t pid, reserved;
};
static_assert(sizeof(struct mem_handle) <= sizeof(struct cuda_ipc_handle), "64 bytes");
enum { MEM_MAGIC = 0x4d49504d };

CUresult cuIpcGetMemHandle(struct cuda_ipc_handle *handle, CUdeviceptr pointer)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();
	struct range *range = range_of(pointer);
	struct mem_handle h;

	(void)ctx;
	if (r)
		return fake_leave(r);
	if (fake_flag("FAKECUDA_NO_LEGACY") || fake_flag("FAKECUDA_INTEGRATED") ||
	    fake_flag("FAKECUDA_WSL"))
		return fake_leave(CUDA_E_NOT_SUPPORTED);
	if (!range || range->kind != FAKE_ALLOCATION)
		return fake_leave(CUDA_E_INVALID_VALUE);
	h = (struct mem_handle){
		.magic = MEM_MAGIC,
		.device = fake.physical[range->device],
		.id = range->shared_id,
		.block = range->block->id,
		.block_size = range->block->size,
		.offset = (uint64_t)(range->base - range->block->base),
		.size = range->size,
		.pid = fake_seen_pid(),
	};
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &h, sizeof(h));
	return fake_leave(CUDA_OK);
}

/* Says whether that handle can be opened here. */
static CUresult handle_check(const struct mem_handle *h, const struct CUctx_st *ctx)
{
	struct fake_allocation *a;
	CUresult r = CUDA_OK;
	int device = fake_ordinal(h->device);

	if (h->magic != MEM_MAGIC)
		return CUDA_E_INVALID_VALUE;
	if (h->pid == fake_seen_pid()) /* it takes the handle for one of its own */
		return CUDA_E_INVALID_CONTEXT;
	fake_lock(fake.registry);
	fake_reap(fake.registry);
	a = shared_find(h->id);
	if (!a)
		r = CUDA_E_INVALID_VALUE;
	else if (a->owner == fake.self)
		r = CUDA_E_INVALID_CONTEXT;
	fake_unlock(fake.registry);
	if (r)
		return r;
	if (device < 0)
		return CUDA_E_INVALID_DEVICE;
	if (device != ctx->device && fake_flag("FAKECUDA_NO_PEER"))
		return CUDA_E_PEER_ACCESS_UNSUPPORTED;
	return CUDA_OK;
}

static CUresult import_new(CUdeviceptr *pointer, const struct mem_handle *h, struct CUctx_st *ctx)
{
	struct block *block = blocks;
	struct range *range;

	while (block && (!block->imported || block->id != h->block))
		block = block->next;
	if (block && block->ctx != ctx)
		return CUDA_E_INVALID_HANDLE;
	if (!block)
		block = block_add(ctx, h->block, h->block_size, fake_ordinal(h->device), true);
	if (!block)
		return CUDA_E_MAP_FAILED;
	block->users++;
	if (!open_add(h->id)) {
		block_drop(block);
		return CUDA_E_OUT_OF_MEMORY;
	}
	range = range_add(FAKE_IMPORT, block->base + h->offset, h->size, block->device);
	range->block = block;
	range->ctx = ctx;
	range->shared_id = h->id;
	*pointer = (CUdeviceptr)(uintptr_t)range->base;
	return CUDA_OK;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, struct cuda_ipc_handle handle, unsigned flags)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();
	struct mem_handle h;

	memcpy(&h, &handle, sizeof(h));
	if (!r && flags != CUDA_IPC_LAZY_ENABLE_PEER_ACCESS)
		r = CUDA_E_INVALID_VALUE;
	if (!r)
		r = handle_check(&h, ctx);
	if (r)
		return fake_leave(r);
	for (struct range *range = fake.ranges; range; range = range->next) {
		if (range->kind != FAKE_IMPORT || range->shared_id != h.id)
			continue;
		if (range->ctx != ctx)
			return fake_leave(CUDA_E_INVALID_HANDLE);
		range->opens++;
		*pointer = (CUdeviceptr)(uintptr_t)range->base;
		return fake_leave(CUDA_OK);
	}
	return fake_leave(import_new(pointer, &h, ctx));
}

/* The last close waits for the device, as the real one may. */
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();
	struct range *range = range_at(pointer);

	(void)ctx;
	if (r)
		return fake_leave(r);
	if (range && range->kind == FAKE_IMPORT && range->opens == 1) {
		stream_device_wait(range->device, FAKE_CLOSING_BARS_WORK);
		range = range_at(pointer);
	}
	if (!range || range->kind != FAKE_IMPORT)
		return fake_leave(CUDA_E_INVALID_VALUE);
	if (--range->opens == 0)
		range_end(range);
	return fake_leave(CUDA_OK);
}

/* ---- What a pointer is ---- */

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
	ENTER_LOCKED();
	struct range *range = range_of(pointer);

	if (!range)
		return fake_leave(CUDA_E_NOT_FOUND);
	if (base)
		*base = (CUdeviceptr)(uintptr_t)range->base;
	if (size)
		*size = range->size;
	return fake_leave(CUDA_OK);
}

static unsigned long long handle_types(const struct range *r)
{
	if (r->vmm)
		return (unsigned)r->vmm->prop.handle_types;
	return r->pool ? (unsigned)r->pool->handle_types : 0;
}

/* Returns the attribute as a number, and how many bytes of it are written. 0 bytes: there is no
 * such attribute. */
static size_t attribute(unsigned long long *value, int which, const struct range *r,
			CUdeviceptr pointer)
{
	static const struct range none;
	struct CUctx_st *ctx = fake_context();
	bool known = r != NULL;

	r = known ? r : &none;
	switch (which) {
	case CUDA_POINTER_CONTEXT:
		*value = (uintptr_t)r->ctx;
		return 8;
	case CUDA_POINTER_MEMORY_TYPE:
		*value = known ? CUDA_MEMORY_DEVICE : 0;
		return 4;
	case CUDA_POINTER_DEVICE_POINTER:
		*value = known ? pointer : 0;
		return 8;
	case CUDA_POINTER_HOST_POINTER:
		*value = known && r->kind == FAKE_MANAGED ? pointer : 0;
		return 8;
	case CUDA_POINTER_SYNC_MEMOPS:
		*value = 0;
		return 1;
	case CUDA_POINTER_BUFFER_ID:
		*value = r->buffer_id;
		return 8;
	case CUDA_POINTER_IS_MANAGED:
		*value = known && r->kind == FAKE_MANAGED;
		return 1;
	case CUDA_POINTER_DEVICE_ORDINAL:
		*value = known ? (unsigned)r->device : (unsigned)-2;
		return 4;
	case CUDA_POINTER_LEGACY_IPC_CAPABLE:
		*value = known && r->kind == FAKE_ALLOCATION && !fake_flag("FAKECUDA_NO_LEGACY") &&
			 !fake_flag("FAKECUDA_INTEGRATED"); /* WSL says yes, and then refuses */
		return 1;
	case CUDA_POINTER_RANGE_START:
		*value = (uintptr_t)(r->reservation ? r->reservation->base : r->base);
		return 8;
	case CUDA_POINTER_RANGE_SIZE:
		*value = r->reservation ? r->reservation->size : r->size;
		return 8;
	case CUDA_POINTER_MAPPED:
		*value = known;
		return 1;
	case CUDA_POINTER_ALLOWED_HANDLE_TYPES:
		*value = handle_types(r);
		return 8;
	case CUDA_POINTER_ACCESS_FLAGS:
		*value = known && ctx ? r->access[ctx->device] : 0;
		return 8;
	case CUDA_POINTER_POOL:
		*value = (uintptr_t)r->pool;
		return 8;
	case CUDA_POINTER_MAPPING_SIZE:
		*value = r->size;
		return 8;
	case CUDA_POINTER_MAPPING_BASE:
		*value = (uintptr_t)r->base;
		return 8;
	case CUDA_POINTER_BLOCK_ID:
		*value = r->vmm ? r->vmm->id : r->shared_id;
		return 8;
	default:
		return 0;
	}
}

CUresult cuPointerGetAttribute(void *value, int which, CUdeviceptr pointer)
{
	ENTER_LOCKED();
	const struct range *range = range_of(pointer);
	unsigned long long v = 0;
	size_t n = attribute(&v, which, range, pointer);

	if (!range || !n || !value)
		return fake_leave(CUDA_E_INVALID_VALUE);
	memcpy(value, &v, n);
	return fake_leave(CUDA_OK);
}

CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **values, CUdeviceptr pointer)
{
	ENTER_LOCKED();
	const struct range *range = range_of(pointer);

	for (unsigned i = 0; i < n; i++) {
		unsigned long long v = 0;
		size_t size = attribute(&v, attributes[i], range, pointer);

		if (!size || !values[i])
			return fake_leave(CUDA_E_INVALID_VALUE);
		memcpy(values[i], &v, size);
	}
	return fake_leave(CUDA_OK);
}
