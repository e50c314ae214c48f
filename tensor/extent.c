/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers come from other processes: all arithmetic on them is checked, or done in 128 bits
 * where the operands bound the result. */
#include <errno.h>
#include <stddef.h>

#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/limits.h"
#include "util/checked.h"

int tensor_numel(int32_t ndim, const int64_t *shape, uint64_t *numel)
{
	int64_t product = 1;
	bool empty = false;

	if (ndim < 0 || ndim > TENSOR_NDIM_MAX || (ndim > 0 && !shape))
		return -EINVAL;
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return -EINVAL;
	}
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] == 0)
			empty = true;
		else if (!checked_mul_i64(&product, product, shape[i]))
			return -EOVERFLOW;
	}
	*numel = empty ? 0 : (uint64_t)product;
	return 0;
}

int tensor_nbytes(DLDataType t, int32_t ndim, const int64_t *shape, bool padded, uint64_t *nbytes)
{
	unsigned __int128 bytes;
	const char *why;
	uint64_t numel;
	int r = tensor_dtype_check(t, &why);

	if (!r)
		r = tensor_numel(ndim, shape, &numel);
	if (r)
		return r;
	bytes = ((unsigned __int128)numel * tensor_element_bits(t, padded) + 7) / 8;
	if (bytes > INT64_MAX)
		return -EOVERFLOW;
	*nbytes = (uint64_t)bytes;
	return 0;
}

void tensor_contiguous_strides(int32_t ndim, const int64_t *shape, int64_t *strides)
{
	uint64_t stride = 1;

	for (int32_t i = ndim - 1; i >= 0; i--) {
		strides[i] = (int64_t)stride;
		if (shape[i] > 1)
			stride *= (uint64_t)shape[i];
	}
}

bool tensor_is_contiguous(const DLTensor *t)
{
	uint64_t next = 1;

	if (!t->strides)
		return true;
	for (int32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] == 0)
			return true;
	}
	for (int32_t i = t->ndim - 1; i >= 0; i--) {
		if (t->shape[i] == 1)
			continue;
		if ((uint64_t)t->strides[i] != next)
			return false;
		next *= (uint64_t)t->shape[i];
	}
	return true;
}

void tensor_plain_strides(const DLTensor *t, int64_t *strides)
{
	if (!t->strides)
		tensor_contiguous_strides(t->ndim, t->shape, strides);
	for (int32_t i = 0; i < t->ndim; i++)
		if (t->shape[i] == 1)
			strides[i] = 1;
		else if (t->strides)
			strides[i] = t->strides[i];
}

/* Puts into @order the dimensions whose strides matter, the smallest stride first. */
static int32_t order_by_stride(int32_t ndim, const int64_t *shape, const int64_t *strides,
			       int32_t *order)
{
	int32_t n = 0;

	for (int32_t i = 0; i < ndim; i++) {
		int32_t at = n;

		if (shape[i] == 1)
			continue;
		for (; at && strides[order[at - 1]] > strides[i]; at--)
			order[at] = order[at - 1];
		order[at] = i;
		n++;
	}
	return n;
}

int tensor_strided_bytes(DLDataType t, int32_t ndim, const int64_t *shape, const int64_t *strides,
			 bool padded, uint64_t *nbytes, const char **why)
{
	uint32_t bits = tensor_element_bits(t, padded);
	int32_t order[TENSOR_STRIDED_NDIM_MAX], n;
	int64_t reach = 1, step;
	unsigned __int128 bytes;

	*why = NULL;
	if (ndim < 1 || ndim > TENSOR_STRIDED_NDIM_MAX)
		*why = "a tensor with strides has 1 to 16 dimensions";
	else if (bits % 8)
		*why = "elements with strides must be of whole bytes";
	for (int32_t i = 0; !*why && i < ndim; i++)
		if (strides[i] < 1 || shape[i] < 1)
			*why = strides[i] < 1
				       ? "a stride is negative, or 0 as in an expanded tensor"
				       : "strides are for tensors that have elements";
	if (*why)
		return -EINVAL;
	n = order_by_stride(ndim, shape, strides, order);
	for (int32_t i = 0; i < n; i++) {
		if (strides[order[i]] < reach) {
			*why = "the strides make elements overlap, or interleave";
			return -EINVAL;
		}
		*why = "the strides lead too far";
		if (!checked_mul_i64(&step, shape[order[i]] - 1, strides[order[i]]) ||
		    __builtin_add_overflow(reach, step, &reach))
			return -EOVERFLOW;
	}
	bytes = (unsigned __int128)reach * (bits / 8);
	*why = "the strides lead too far";
	if (bytes > INT64_MAX)
		return -EOVERFLOW;
	*why = NULL;
	*nbytes = (uint64_t)bytes;
	return 0;
}

/*
 * Adds up in bits, then rounds outwards to bytes. 128 bits are enough: a dimension's reach is held
 * below 2^63 elements of less than 2^24 bits, and there are at most 64 dimensions.
 */
static int strided_extent(const DLTensor *t, uint32_t bits, int64_t *low, int64_t *high)
{
	__int128 from = 0, to = bits;

	for (int32_t i = 0; i < t->ndim; i++) {
		__int128 reach = (__int128)(t->shape[i] - 1) * t->strides[i];

		if (reach > INT64_MAX || reach < INT64_MIN)
			return -EOVERFLOW;
		if (reach < 0)
			from += reach * bits;
		else
			to += reach * bits;
	}
	from = -((7 - from) / 8);
	to = (to + 7) / 8;
	if (from < INT64_MIN || to > INT64_MAX)
		return -EOVERFLOW;
	*low = (int64_t)from;
	*high = (int64_t)to;
	return 0;
}

int tensor_extent(const DLTensor *t, uint64_t flags, int64_t *low, int64_t *high)
{
	uint64_t nbytes;
	int r = tensor_nbytes(t->dtype, t->ndim, t->shape, tensor_is_padded(flags), &nbytes);

	if (r)
		return r;
	if (nbytes > 0 && t->strides && t->ndim > 0)
		return strided_extent(t, tensor_element_bits(t->dtype, tensor_is_padded(flags)),
				      low, high);
	*low = 0;
	*high = (int64_t)nbytes;
	return 0;
}
