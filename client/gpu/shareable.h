/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that a descriptor can open in others: draft buffers, and what
 * tl_cuda_alloc() makes. */
#pragma once

#include "client/gpu/event.h"

/*
 * Allocates @size bytes, a multiple of the device's granularity, and maps them at *base. *fd opens
 * them elsewhere; @fd may be NULL. The context is current. 0, or a negative errno with a text;
 * *base is not 0 then if they are mapped, and unmapping them is left to the caller.
 */
int cuda_shareable_new(const struct cuda_scope *scope, const struct cuda_device *device,
		       uint64_t size, CUdeviceptr *base, int *fd);
/* Unmaps it and frees the addresses. The context is current. */
void cuda_shareable_unmap(const struct cuda_scope *scope, CUdeviceptr base, uint64_t size);
/* The same for memory of that life of the device's contexts, when @after has come, unless that is
 * NULL. After a reset of the device nothing uses the memory, but it is still mapped. If the process
 * is ending the memory goes with it. The closer. */
void cuda_shareable_end(struct cuda_device *device, unsigned life, const struct cuda_event *after,
			CUdeviceptr base, uint64_t size);

/* @size as a multiple of the granularity, at least one. Such memory can be made if cuda_shareable()
 * is 0; otherwise that is -ENOTSUP with a text. */
uint64_t cuda_shareable_size(const struct cuda_device *device, uint64_t size);
int cuda_shareable(const struct cuda_device *device);
