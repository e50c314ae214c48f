/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of elements and bytes of a shape, and the bytes that strides reach. Nothing here
 * reads a tensor's bytes. Functions return 0 or a negative errno; outputs are untouched on failure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

/*
 * The number of elements; 1 if @ndim is 0. A size of 0 does not excuse the others: without it their
 * product must still be a number. -EINVAL: @ndim is not 0 to TENSOR_NDIM_MAX, @shape is missing, or
 * a size is negative. -EOVERFLOW: more than INT64_MAX.
 */
int tensor_numel(int32_t ndim, const int64_t *shape, uint64_t *numel);

/* The number of bytes of the elements in C order: their bits, rounded up to bytes once, at the end.
 * Fails as tensor_numel() does, and with -EINVAL for a type that tensor_dtype_check() refuses. */
int tensor_nbytes(DLDataType t, int32_t ndim, const int64_t *shape, bool padded, uint64_t *nbytes);

/*
 * The strides of C order, in elements; a size of 0 counts as 1. @shape must be one that
 * tensor_numel() accepts.
 */
void tensor_contiguous_strides(int32_t ndim, const int64_t *shape, int64_t *strides);

/* True if @t is in C order without gaps. Strides do not matter along sizes of 1, nor if there are
 * no elements. */
bool tensor_is_contiguous(const DLTensor *t);

/* @t's strides as they are published: a size of 1 has stride 1, whatever it had. @strides has space
 * for t->ndim. */
void tensor_plain_strides(const DLTensor *t, int64_t *strides);

/*
 * The number of bytes from the first to the last one of a tensor with published strides, which are
 * hostile. They must be 1 or more, and each must step over the whole reach of those below it, so
 * that no two elements share a byte; hence there are no more elements than fit. -EINVAL or
 * -EOVERFLOW: @why says what is wrong. @shape is one that tensor_nbytes() accepts.
 */
int tensor_strided_bytes(DLDataType t, int32_t ndim, const int64_t *shape, const int64_t *strides,
			 bool padded, uint64_t *nbytes, const char **why);

/* True if DLPack's @flags say that each element is padded to whole bytes. */
static inline bool tensor_is_padded(uint64_t flags)
{
	return flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
}

/*
 * The bytes that @t touches, from *low to below *high, counted from data + byte_offset; both are 0
 * if it has no elements. @flags are DLPack's. Fails as tensor_nbytes() does, and with -EOVERFLOW if
 * a stride leads too far.
 */
int tensor_extent(const DLTensor *t, uint64_t flags, int64_t *low, int64_t *high);
