/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>

#include <tensorlease/cuda.h>

#include "client/api/client.h"
#include "client/gpu/pluggable.h"
#include "client/error.h"

TL_API void *tl_cuda_alloc(size_t size, int device, void *stream)
{
	void *memory = NULL;
	int r;

	(void)stream;
	r = size && size <= INT64_MAX
		    ? library_prepare()
		    : tl_fail(-EINVAL,
			      "tl_cuda_alloc: %zu bytes; at least 1 is needed, and at most 2^63 - 1",
			      size);
	if (!r)
		r = cuda_pluggable_new(size, device, &memory);
	if (r)
		errno = -r;
	return memory;
}

TL_API void tl_cuda_free(void *memory, size_t size, int device, void *stream)
{
	int error = errno;

	(void)size;
	(void)device;
	tl_failures_hide();
	if (memory)
		cuda_pluggable_free(memory, (intptr_t)stream);
	tl_failures_show();
	errno = error;
}
