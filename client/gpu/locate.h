/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the allocation that an address on a GPU is in, and whether and how it can be shared. */
#pragma once

#include "client/gpu/export.h"

struct cuda_located {
	struct cuda_memory memory;
	uint64_t offset; /* of the address in the memory */
	struct cuda_parts parts;
	int pool_fd; /* after cuda_located_open() of a pool; else -1 */
	bool opened;
	bool idle; /* the stream that was asked about has no work left */
};

/*
 * Finds what [@at, @at + @size) lies in, and looks at @stream unless it is TL_STREAM_NONE, all with
 * the fewest calls of the driver. Call cuda_located_deinit() afterwards in any case. 0;
 * -ENOTSUP if it cannot be shared, with a text that says why and what to do; or another negative
 * errno.
 */
int cuda_locate(CUdeviceptr at, uint64_t size, struct cuda_device *device, intptr_t stream,
		struct cuda_located *out);
/* Makes the handle that opens it in another process; `parts` make the descriptors. */
int cuda_located_open(struct cuda_located *located);
void cuda_located_deinit(struct cuda_located *located);
