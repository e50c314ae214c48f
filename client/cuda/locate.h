/* SPDX-License-Identifier: Apache-2.0 */
/* What an address on a GPU lies in, and whether and how that can be shared. */
#pragma once

#include "client/cuda/export.h"

struct cuda_located {
	struct cuda_memory memory;
	uint64_t offset; /* of the address in it */
	int *fds;	 /* after cuda_located_open(): one a part, or NULL */
	bool opened;
};

/*
 * Finds what [@at, @at + @size) lies in. cuda_located_deinit() afterwards, in any case. 0;
 * -ENOTSUP: it cannot be shared, and the text says why and what to do; or another negative errno.
 */
int cuda_locate(CUdeviceptr at, uint64_t size, struct cuda_device *device,
		struct cuda_located *out);
/* Makes what opens it in another process: its handle, its descriptors. */
int cuda_located_open(struct cuda_located *located);
void cuda_located_deinit(struct cuda_located *located);
