/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of other processes, stream-ordered memory, each imported once however many of its
 * allocations are open here. */
#pragma once

#include "client/cuda/device.h"
#include "proto/wire.h"

struct cuda_pool_use;

/*
 * Imports the pool that @fd_peek opens, or uses the import that there is: that of another
 * descriptor of the same open file, in which the allocation that @pointer (WIRE_HANDLE_BYTES)
 * describes is not open yet. The driver opens none twice in one import, but two daemons, or two
 * clients of the producer, may have it in segments of their own. 0, or a negative errno with a
 * text; *out may be there then too, because to end it may wait for the GPU. The context is current.
 */
int cuda_pool_use(struct cuda_device *device, const struct cuda_scope *scope, int fd_peek,
		  const unsigned char *pointer, struct cuda_pool_use **out);
CUmemoryPool cuda_pool_of(const struct cuda_pool_use *use);
/* After the allocation was closed. The last one destroys the import, which may wait for the GPU.
 * The context is current, unless that of the import has ended: then @scope is NULL. */
void cuda_pool_unuse(struct cuda_pool_use *use, const struct cuda_scope *scope);
/* In a forked child, under cuda_lock: closes their descriptors, since the child's program may close
 * all, and others get their numbers. */
void cuda_pools_inherit(void);
