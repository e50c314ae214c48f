/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of GPU tensors share: producers and consumers in processes of their own. */
#pragma once

#include "tests/daemon/client_common.h"
#include "tests/gpu.h"

static const struct cuda_driver *cuda; /* in a child, after gpu_open() */

/* A tensor of somebody else's on a GPU. */
struct gpu_foreign {
	DLManagedTensorVersioned managed;
	int64_t shape[1];
	CUdeviceptr memory; /* freed by its deleter */
	_Atomic int deleted;
};

static inline void gpu_foreign_delete(DLManagedTensorVersioned *managed)
{
	struct gpu_foreign *f = managed->manager_ctx;

	atomic_fetch_add(&f->deleted, 1);
}

/* The first @n bytes of @memory, which stays its owner's. */
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

/* In a child: a client, and the driver. */
static inline tl_client *gpu_open(const struct test_daemon *d, int device)
{
	cuda = gpu_use(device);
	return td_connect(d);
}

static inline CUdeviceptr gpu_alloc(size_t size)
{
	CUdeviceptr p = 0;

	gpu_must(cuda->mem_alloc(&p, size));
	return p;
}

/* Waits, without a sleep of its own, for what another thread does: at most 20 s. */
#define eventually(condition)                                                                      \
	do {                                                                                       \
		int64_t until_ = now_ns() + 20 * SECOND;                                           \
		while (!(condition) && now_ns() < until_)                                          \
			sched_yield();                                                             \
		must(condition);                                                                   \
	} while (0)

static inline DLManagedTensorVersioned *gpu_get(tl_client *client, const char *name,
						intptr_t stream)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 20 * SECOND, .stream = stream };
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_get(client, name, &o, &t), 0);
	must_be(t->dl_tensor.device.device_type, kDLCUDA);
	return t;
}

static inline CUdeviceptr gpu_data(const DLManagedTensorVersioned *t)
{
	return (CUdeviceptr)(uintptr_t)t->dl_tensor.data;
}

/* A tensor of @n bytes of @value in memory of the library's, published. */
static inline uint64_t gpu_put_draft(tl_client *client, const char *name, int value, int64_t n,
				     int device, CUstream stream)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	uint64_t version = 0;
	tl_draft *draft;

	must_be(tl_alloc_cuda(client, name, &spec, device, &draft), 0);
	must_be(tl_draft_tensor(draft)->device.device_type, kDLCUDA);
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, value, (size_t)n, stream);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	must_be(tl_commit(draft, &version), 0);
	return version;
}
