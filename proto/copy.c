/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathering. Neighbouring dimensions that lie one behind the other are merged first, so that most tensors end as a few
 * long runs; what is left is walked in the destination's order. Where that would jump through the source (a transposed
 * matrix) the two innermost dimensions are walked in blocks.
 */
#include <stdbool.h>
#include <string.h>

#include "proto/copy.h"
#include "proto/tensor.h"

enum { COPY_BLOCK = 32 };

struct dim {
	int64_t size;
	int64_t stride; /* in units: bytes, or bits */
};

struct shape {
	int ndim;
	struct dim dims[TENSOR_NDIM_MAX + 2];
};

/* Sizes of 1 vanish, and neighbours that are one run become one. @unit: distance of neighbouring elements. */
static void shape_init(struct shape *s, const DLTensor *t, int64_t unit)
{
	int64_t strides[TENSOR_NDIM_MAX];
	struct dim *last;

	if (t->strides)
		memcpy(strides, t->strides, (size_t)t->ndim * sizeof(*strides));
	else
		tensor_contiguous_strides(strides, t->shape, t->ndim);
	s->ndim = 0;
	for (int32_t i = 0; i < t->ndim; i++) {
		struct dim d = { .size = t->shape[i], .stride = strides[i] * unit };

		if (d.size == 1)
			continue;
		last = s->ndim ? &s->dims[s->ndim - 1] : NULL;
		if (last && last->stride == d.stride * d.size) {
			last->size *= d.size;
			last->stride = d.stride;
		} else {
			s->dims[s->ndim++] = d;
		}
	}
	while (s->ndim < 2) { /* so that there is always a row of rows */
		memmove(s->dims + 1, s->dims, (size_t)s->ndim * sizeof(s->dims[0]));
		s->dims[0] = (struct dim){ .size = 1, .stride = 0 };
		if (s->ndim++ == 0)
			s->dims[0].stride = unit;
	}
}

/* The next index of the outer dimensions; false after the last. @at: its place in the source. */
static bool index_next(const struct shape *s, int64_t *index, int64_t *at)
{
	for (int i = s->ndim - 3; i >= 0; i--) {
		*at += s->dims[i].stride;
		if (++index[i] < s->dims[i].size)
			return true;
		*at -= s->dims[i].size * s->dims[i].stride;
		index[i] = 0;
	}
	return false;
}

/* ---- whole bytes ------------------------------------------------------------------------------ */

#define ROW_COPY(type)                                                                                             \
	for (int64_t j = 0; j < n; j++) {                                                                          \
		type v;                                                                                            \
		memcpy(&v, src + j * stride, sizeof(v));                                                           \
		memcpy(dst + j * (int64_t)sizeof(v), &v, sizeof(v));                                               \
	}

struct wide {
	uint64_t half[2];
};

static void row_copy(unsigned char *dst, const unsigned char *src, int64_t n, int64_t stride, int64_t size)
{
	if (stride == size) {
		memcpy(dst, src, (size_t)(n * size));
		return;
	}
	switch (size) {
	case 1:
		ROW_COPY(uint8_t);
		break;
	case 2:
		ROW_COPY(uint16_t);
		break;
	case 4:
		ROW_COPY(uint32_t);
		break;
	case 8:
		ROW_COPY(uint64_t);
		break;
	case 16:
		ROW_COPY(struct wide);
		break;
	default:
		for (int64_t j = 0; j < n; j++)
			memcpy(dst + j * size, src + j * stride, (size_t)size);
	}
}

static void block_copy(unsigned char *dst, const unsigned char *src, const struct dim *rows, const struct dim *cols,
		       int64_t size)
{
	int64_t i_end, j_end;

	for (int64_t i0 = 0; i0 < rows->size; i0 += COPY_BLOCK) {
		i_end = rows->size - i0 < COPY_BLOCK ? rows->size : i0 + COPY_BLOCK;
		for (int64_t j0 = 0; j0 < cols->size; j0 += COPY_BLOCK) {
			j_end = cols->size - j0 < COPY_BLOCK ? cols->size : j0 + COPY_BLOCK;
			for (int64_t i = i0; i < i_end; i++)
				row_copy(dst + (i * cols->size + j0) * size, src + i * rows->stride + j0 * cols->stride,
					 j_end - j0, cols->stride, size);
		}
	}
}

static void bytes_gather(unsigned char *dst, const unsigned char *src, const DLTensor *t, int64_t size)
{
	int64_t index[TENSOR_NDIM_MAX] = { 0 }, at = 0, plane;
	const struct dim *rows, *cols;
	struct shape s;
	bool blocks;

	shape_init(&s, t, size);
	rows = &s.dims[s.ndim - 2];
	cols = &s.dims[s.ndim - 1];
	plane = rows->size * cols->size * size;
	blocks = cols->stride != size && rows->stride == size;
	do {
		if (blocks) {
			block_copy(dst, src + at, rows, cols, size);
		} else {
			for (int64_t i = 0; i < rows->size; i++)
				row_copy(dst + i * cols->size * size, src + at + i * rows->stride, cols->size, cols->stride,
					 size);
		}
		dst += plane;
	} while (index_next(&s, index, &at));
}

/* ---- packed bits ------------------------------------------------------------------------------ */

/* Bit i of a packed tensor is bit i % 8 of byte i / 8. */
static void bits_copy(unsigned char *dst, uint64_t to, const unsigned char *src, int64_t from, int64_t n)
{
	for (int64_t i = 0; i < n; i++, to++, from++) {
		/* arithmetic shift: bits before element 0 are in the bytes before it */
		unsigned bit = src[from >> 3] >> (from & 7) & 1U;

		dst[to / 8] = (unsigned char)((dst[to / 8] & ~(1U << to % 8)) | bit << to % 8);
	}
}

static void bits_gather(unsigned char *dst, const unsigned char *src, const DLTensor *t, int64_t bits)
{
	int64_t index[TENSOR_NDIM_MAX] = { 0 }, at = 0, row;
	const struct dim *rows, *cols;
	struct shape s;
	uint64_t to = 0;

	shape_init(&s, t, bits);
	rows = &s.dims[s.ndim - 2];
	cols = &s.dims[s.ndim - 1];
	do {
		for (int64_t i = 0; i < rows->size; i++) {
			row = at + i * rows->stride;
			for (int64_t j = 0; j < cols->size; j++, to += (uint64_t)bits)
				bits_copy(dst, to, src, row + j * cols->stride, bits);
		}
	} while (index_next(&s, index, &at));
	if (to % 8) /* what is left of the last byte means nothing; it is 0 */
		dst[to / 8] = (unsigned char)(dst[to / 8] & ((1U << to % 8) - 1));
}

void copy_gather(void *dst, const DLTensor *src, uint64_t flags)
{
	bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	const unsigned char *from = (const unsigned char *)src->data + src->byte_offset;
	uint64_t bits = tensor_element_bits(src->dtype, padded), nbytes;

	if (tensor_nbytes(src->dtype, src->ndim, src->shape, padded, &nbytes) || nbytes == 0)
		return;
	if (tensor_is_contiguous(src))
		memcpy(dst, from, nbytes);
	else if (bits % 8 == 0)
		bytes_gather(dst, from, src, (int64_t)(bits / 8));
	else
		bits_gather(dst, from, src, (int64_t)bits);
}
