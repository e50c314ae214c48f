/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of other processes (stream-ordered memory). Each pool is imported once, however many of its
 * allocations are open here. */
#pragma once

#include "client/gpu/device.h"
#include "proto/wire.h"

struct cuda_pool_use;

/*
 * Opens the allocation that @handle (WIRE_HANDLE_BYTES) describes, in the pool that @fd_peek opens.
 * If it is open already, adds a use: all uses of an allocation have one address. Imports the pool,
 * unless it was imported already from this or another descriptor of the same open file. Waits until
 * @deadline while the last use of the allocation ends. Returns 0, or a negative errno with a text.
 * If *@out is set the caller has to close it, even after a failure; that may wait for the GPU. The
 * context is current.
 */
int cuda_pool_open(struct cuda_device *device, const struct cuda_scope *scope, int fd_peek,
		   const unsigned char *handle, int64_t deadline, CUdeviceptr *base,
		   struct cuda_pool_use **out);
/* Ends a use. The last use of an allocation frees it, and the last use of a pool destroys its
 * import; both may wait for the GPU. The context is current, unless the import's context has ended:
 * then @scope is NULL. */
void cuda_pool_close(struct cuda_pool_use *use, const struct cuda_scope *scope);
/* In a forked child, under cuda_lock: closes the descriptors of pools, since the child's program
 * may close all descriptors and open others under the same numbers. */
void cuda_pools_inherit(void);
