/* SPDX-License-Identifier: Apache-2.0 */
/* Each kind of GPU memory, and tensors in it as other libraries hand them out. */
#pragma once

#include "tests/client/common.h"
#include "tests/harness/gpu.h"

static const struct cuda_driver *cuda; /* in a child, after gpu_open() */

/* ---- Memory of the test's own ---- */

enum gpu_kind {
	GPU_LEGACY,
	GPU_VMM,
	GPU_PARTS, /* virtual memory of several allocations */
	GPU_POOL,
	GPU_KINDS,
};

enum { GPU_PART = 2 << 20, GPU_PARTS_MAX = 8 };

struct gpu_memory {
	enum gpu_kind kind;
	CUcontext context;
	CUdeviceptr base;
	size_t size;
	unsigned parts;
	CUmemoryPool pool;
};

static inline void gpu_map_part(CUdeviceptr at, size_t size, int device, int handle_types)
{
	struct cuda_allocation_prop prop = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = handle_types,
		.location = { CUDA_LOCATION_DEVICE, device },
	};
	struct cuda_access access = { prop.location, CUDA_ACCESS_READ_WRITE };
	cuda_vmm_handle handle;

	gpu_must(cuda->mem_create(&handle, size, &prop, 0));
	gpu_must(cuda->mem_map(at, size, 0, handle, 0));
	gpu_must(cuda->mem_release(handle));
	gpu_must(cuda->mem_set_access(at, size, &access, 1));
}

static inline CUmemoryPool gpu_pool(int device, bool shareable)
{
	struct cuda_pool_props props = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = shareable ? CUDA_HANDLE_POSIX_FD : 0,
		.location = { CUDA_LOCATION_DEVICE, device },
	};
	CUmemoryPool pool;

	gpu_must(cuda->pool_create(&pool, &props));
	return pool;
}

/* Virtual memory gets a size that is a multiple of GPU_PART. */
static inline void gpu_memory_init(struct gpu_memory *m, enum gpu_kind kind, size_t size,
				   int device)
{
	*m = (struct gpu_memory){ .kind = kind, .size = size };
	gpu_must(cuda->ctx_get_current(&m->context));
	switch (kind) {
	case GPU_LEGACY:
		gpu_must(cuda->mem_alloc(&m->base, size));
		return;
	case GPU_POOL:
		m->pool = gpu_pool(device, true);
		gpu_must(cuda->mem_alloc_from_pool_async(&m->base, size, m->pool,
							 CUDA_STREAM_LEGACY));
		return;
	default:
		m->size = (size + GPU_PART - 1) / GPU_PART * GPU_PART;
		m->parts = kind == GPU_PARTS ? (unsigned)(m->size / GPU_PART) : 1;
		gpu_must(cuda->mem_address_reserve(&m->base, m->size, 0, 0, 0));
		for (unsigned i = 0; i < m->parts; i++)
			gpu_map_part(m->base + i * (m->size / m->parts), m->size / m->parts, device,
				     CUDA_HANDLE_POSIX_FD);
	}
}

/* May be called on any thread. */
static inline void gpu_memory_deinit(struct gpu_memory *m)
{
	CUcontext before;

	gpu_must(cuda->ctx_push(m->context));
	switch (m->kind) {
	case GPU_LEGACY:
		gpu_must(cuda->mem_free(m->base));
		break;
	case GPU_POOL:
		gpu_must(cuda->mem_free(m->base));
		gpu_must(cuda->pool_destroy(m->pool));
		break;
	default:
		gpu_must(cuda->mem_unmap(m->base, m->size));
		gpu_must(cuda->mem_address_free(m->base, m->size));
	}
	gpu_must(cuda->ctx_pop(&before));
}

/* A tensor on a GPU that another library made. */
struct gpu_foreign {
	DLManagedTensorVersioned managed;
	int64_t shape[1];
	CUdeviceptr memory;
	struct gpu_memory *owned; /* what the deleter frees, at once; NULL: nothing */
	_Atomic int deleted;
};

static inline void gpu_foreign_delete(DLManagedTensorVersioned *managed)
{
	struct gpu_foreign *f = managed->manager_ctx;

	if (f->owned)
		gpu_memory_deinit(f->owned);
	atomic_fetch_add(&f->deleted, 1);
}

/* Makes a tensor of the first @n bytes of @memory, which stays its owner's. */
static inline void gpu_foreign_init(struct gpu_foreign *f, CUdeviceptr memory, int64_t n,
				    int device)
{
	*f = (struct gpu_foreign){ .memory = memory, .shape = { n } };
	f->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = f,
		.deleter = gpu_foreign_delete,
		.dl_tensor = { .data = (void *)(uintptr_t)memory,
			       .device = { kDLCUDA, device },
			       .ndim = 1,
			       .dtype = U8,
			       .shape = f->shape },
	};
}
