/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "tensor/check.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/limits.h"

/*
 * Where the reason goes. refuse() writes it and returns the error:
 * `return refuse(because, -EINVAL, "ndim is %d", ndim);`.
 */
struct because {
	char *text;
	size_t size;
};

__attribute__((format(printf, 3, 4))) static int refuse(const struct because *because, int error,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (because->size)
		vsnprintf(because->text, because->size, format, args);
	va_end(args);
	return error;
}

/* Looks for a fault only if there is one: tensor_nbytes() finds all of them too. */
static int check_shape(const DLTensor *t, uint64_t flags, uint64_t *nbytes,
		       const struct because *because)
{
	char text[TENSOR_DTYPE_TEXT];
	const char *why;
	uint64_t numel;

	if (!tensor_nbytes(t->dtype, t->ndim, t->shape, tensor_is_padded(flags), nbytes))
		return 0;
	if (t->ndim < 0 || t->ndim > TENSOR_NDIM_MAX)
		return refuse(because, -EINVAL, "ndim is %" PRId32 ", it must be 0 to %d", t->ndim,
			      TENSOR_NDIM_MAX);
	if (t->ndim > 0 && !t->shape)
		return refuse(because, -EINVAL,
			      "shape is NULL, which it may be at ndim 0 only; ndim is %" PRId32,
			      t->ndim);
	for (int32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0)
			return refuse(because, -EINVAL,
				      "shape[%" PRId32 "] is %" PRId64 ", it must be at least 0", i,
				      t->shape[i]);
	}
	if (tensor_dtype_check(t->dtype, &why))
		return refuse(because, -EINVAL, "dtype is %s {code %u, bits %u, lanes %u}: %s",
			      tensor_dtype_format(t->dtype, text), t->dtype.code, t->dtype.bits,
			      t->dtype.lanes, why);
	if (tensor_numel(t->ndim, t->shape, &numel))
		return refuse(because, -EOVERFLOW,
			      "the sizes in shape multiply to more than %" PRId64, INT64_MAX);
	return refuse(because, -EOVERFLOW,
		      "%" PRIu64 " elements of %s take more bytes than %" PRId64, numel,
		      tensor_dtype_format(t->dtype, text), INT64_MAX);
}

static int check_device(const DLTensor *t, const struct because *because)
{
	int type = (int)t->device.device_type; /* any number, not only one of the enum */

	if (type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost)
		return 0;
	return refuse(because, -ENOTSUP,
		      "device_type is %d (id %" PRId32
		      "), it must be kDLCPU (%d), kDLCUDAHost (%d), kDLROCMHost (%d) or, where "
		      "GPUs are supported, kDLCUDA (%d)",
		      type, t->device.device_id, kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDA);
}

/*
 * No process has addresses further apart, and with this bound sums of offsets fit into 64 bits,
 * even when they count bits.
 */
#define REACH_MAX ((int64_t)1 << 57)

/* True if all of its bytes have addresses. */
static int check_place(const DLTensor *t, uint64_t flags, const struct because *because)
{
	int64_t low, high;
	__int128 base;

	if (tensor_extent(t, flags, &low, &high))
		return refuse(because, -EOVERFLOW,
			      "strides lead more than %" PRId64 " bytes away from element 0",
			      INT64_MAX);
	if (low == high)
		return 0; /* without elements, data is never read */
	if (!t->data)
		return refuse(because, -EINVAL,
			      "data is NULL, though the tensor has %" PRId64 " bytes", high - low);
	base = (__int128)(uintptr_t)t->data + t->byte_offset;
	if (base > UINTPTR_MAX)
		return refuse(because, -EOVERFLOW,
			      "byte_offset is %" PRIu64 ", which leads beyond the last address",
			      t->byte_offset);
	if (low < -REACH_MAX || high > REACH_MAX || base + low < 0 || base + high > UINTPTR_MAX)
		return refuse(because, -EOVERFLOW,
			      "the elements lie %" PRId64 " to %" PRId64
			      " bytes from element 0, beyond the first or last address",
			      low, high);
	return 0;
}

int tensor_check_shape(const DLTensor *t, uint64_t flags, uint64_t *nbytes, char *why,
		       size_t why_len)
{
	return check_shape(t, flags, nbytes, &(struct because){ .text = why, .size = why_len });
}

int tensor_check_source(const DLTensor *t, uint64_t flags, char *why, size_t why_len)
{
	struct because because = { .text = why, .size = why_len };
	uint64_t nbytes;
	int r;

	if (!t)
		return refuse(&because, -EINVAL, "the tensor is NULL");
	r = check_shape(t, flags, &nbytes, &because);
	if (!r)
		r = check_device(t, &because);
	if (!r)
		r = check_place(t, flags, &because);
	return r;
}
