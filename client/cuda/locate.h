/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the allocation that an address on a GPU is in, and whether and how it can be shared. */
#pragma once

#include "client/cuda/export.h"

struct cuda_located {
	struct cuda_memory memory;
	uint64_t offset; /* of the address in the memory */
	int *fds;	 /* after cuda_located_open(): one for each part, or NULL */
	bool opened;
};

/*
 * Finds what [@at, @at + @size) lies in. Call cuda_located_deinit() afterwards in any case. 0;
 * -ENOTSUP if it cannot be shared, with a text that says why and what to do; or another negative
 * errno.
 */
int cuda_locate(CUdeviceptr at, uint64_t size, struct cuda_device *device,
		struct cuda_located *out);
/* Makes the handle or the descriptors that open it in another process. */
int cuda_located_open(struct cuda_located *located);
void cuda_located_deinit(struct cuda_located *located);
