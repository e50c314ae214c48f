/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers strided elements into C order. The view is first reduced to the fewest equivalent
 * dimensions: an element is a run of bytes like any other, so that neighbours become one run. The
 * remaining dimensions are copied two at a time, row by row. Where the rows of the source run
 * across those of the copy (a transposition), they are copied in tiles that go through a small
 * buffer, so that each cache line on either side is touched once. Packed types below a byte are
 * copied bit by bit.
 *
 * Several threads share a large copy by its outermost dimension.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor/copy.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/limits.h"
#include "util/parallel.h"

enum {
	DIMS_MAX = TENSOR_NDIM_MAX + 1, /* the bytes of an element are a dimension too */
	TILE_BYTES = 8192,
	TILE_UNIT_MAX = 64, /* longer runs gain nothing from tiles */
};

/*
 * The reduced view. All its dimensions are larger than 1. It counts in bytes, or in bits if the
 * type is packed.
 */
struct view {
	int ndim;
	int64_t shape[DIMS_MAX];
	int64_t stride[DIMS_MAX];
};

/*
 * Adds the next inner dimension. If the dimension before it steps over exactly all of it, the two
 * become one.
 */
static void view_push(struct view *v, int64_t size, int64_t stride)
{
	int last = v->ndim - 1;

	if (size == 1)
		return;
	if (last >= 0 && v->stride[last] == stride * size) {
		v->shape[last] *= size;
		v->stride[last] = stride;
		return;
	}
	v->shape[v->ndim] = size;
	v->stride[v->ndim] = stride;
	v->ndim++;
}

/* Each element of @width units becomes a dimension of its own. */
static void view_init(struct view *v, const DLTensor *src, int64_t width)
{
	v->ndim = 0;
	for (int32_t i = 0; i < src->ndim; i++)
		view_push(v, src->shape[i], src->shape[i] == 1 ? 0 : src->strides[i] * width);
	view_push(v, width, 1);
}

/*
 * Takes the innermost dimension off if it is a run without gaps. Returns the length of such a run,
 * or 1.
 */
static int64_t view_pop_run(struct view *v)
{
	if (v->ndim == 0 || v->stride[v->ndim - 1] != 1)
		return 1;
	v->ndim--;
	return v->shape[v->ndim];
}

/* ---- two dimensions ---- */

/* Rows of units of @unit bytes. In the copy a row has no gaps. */
struct plane {
	char *dst;
	const char *src;
	int64_t rows, columns;
	int64_t dst_row;	  /* bytes to the next row of the copy */
	int64_t src_row, src_col; /* bytes to the next row and column of the source; may be < 0 */
	int64_t unit;
};

/* Unit sizes that no integer has: pixels of three values, and complex128. */
struct unit3 {
	uint8_t value[3];
};
struct unit6 {
	uint16_t value[3];
};
struct unit12 {
	uint32_t value[3];
};
struct unit16 {
	uint64_t value[2];
};

static inline int64_t at_most(int64_t n, int64_t limit)
{
	return n < limit ? n : limit;
}

/*
 * With a type for each size of unit the compiler turns every memcpy() into a load and a store,
 * aligned or not. A tile is read along the short step of the source and written along that of the
 * copy.
 */
#define DEFINE_PLANE(size, type, tile)                                                             \
	static void plane_rows_##size(const struct plane *p)                                       \
	{                                                                                          \
		for (int64_t r = 0; r < p->rows; r++) {                                            \
			const char *src = p->src + r * p->src_row;                                 \
			char *dst = p->dst + r * p->dst_row;                                       \
                                                                                                   \
			for (int64_t c = 0; c < p->columns; c++) {                                 \
				memcpy(dst, src + c * p->src_col, sizeof(type));                   \
				dst += sizeof(type);                                               \
			}                                                                          \
		}                                                                                  \
	}                                                                                          \
                                                                                                   \
	static void tile_##size(const struct plane *p, const char *src, char *dst, int64_t rows,   \
				int64_t columns)                                                   \
	{                                                                                          \
		type held[tile][tile];                                                             \
                                                                                                   \
		_Static_assert(sizeof(held) <= TILE_BYTES, "a tile stays in the nearest cache");   \
		for (int64_t c = 0; c < columns; c++) {                                            \
			for (int64_t r = 0; r < rows; r++)                                         \
				memcpy(&held[r][c], src + c * p->src_col + r * p->src_row,         \
				       sizeof(type));                                              \
		}                                                                                  \
		for (int64_t r = 0; r < rows; r++)                                                 \
			memcpy(dst + r * p->dst_row, held[r], (size_t)columns * sizeof(type));     \
	}                                                                                          \
                                                                                                   \
	static void plane_tiles_##size(const struct plane *p)                                      \
	{                                                                                          \
		for (int64_t r = 0; r < p->rows; r += (tile)) {                                    \
			for (int64_t c = 0; c < p->columns; c += (tile))                           \
				tile_##size(p, p->src + r * p->src_row + c * p->src_col,           \
					    p->dst + r * p->dst_row + c * (int64_t)sizeof(type),   \
					    at_most(p->rows - r, tile),                            \
					    at_most(p->columns - c, tile));                        \
		}                                                                                  \
	}

DEFINE_PLANE(1, uint8_t, 64)
DEFINE_PLANE(2, uint16_t, 64)
DEFINE_PLANE(3, struct unit3, 32)
DEFINE_PLANE(4, uint32_t, 32)
DEFINE_PLANE(6, struct unit6, 32)
DEFINE_PLANE(8, uint64_t, 16)
DEFINE_PLANE(12, struct unit12, 16)
DEFINE_PLANE(16, struct unit16, 8)

/*
 * Copies units of any other size. Its tiles have no buffer; they only keep to lines of the source
 * that are near each other.
 */
static void plane_runs(const struct plane *p, int64_t tile_rows, int64_t tile_columns)
{
	for (int64_t r = 0; r < p->rows; r += tile_rows) {
		int64_t rows = at_most(p->rows - r, tile_rows);

		for (int64_t c = 0; c < p->columns; c += tile_columns) {
			int64_t columns = at_most(p->columns - c, tile_columns);

			for (int64_t i = r; i < r + rows; i++) {
				for (int64_t j = c; j < c + columns; j++)
					memcpy(p->dst + i * p->dst_row + j * p->unit,
					       p->src + i * p->src_row + j * p->src_col,
					       (size_t)p->unit);
			}
		}
	}
}

static void plane_rows_runs(const struct plane *p)
{
	plane_runs(p, 1, p->columns);
}

static void plane_tiles_runs(const struct plane *p)
{
	plane_runs(p, 32, 32);
}

typedef void plane_copy(const struct plane *p);

static plane_copy *plane_kernel(int64_t unit, bool tiles)
{
	switch (unit) {
	case 1:
		return tiles ? plane_tiles_1 : plane_rows_1;
	case 2:
		return tiles ? plane_tiles_2 : plane_rows_2;
	case 3:
		return tiles ? plane_tiles_3 : plane_rows_3;
	case 4:
		return tiles ? plane_tiles_4 : plane_rows_4;
	case 6:
		return tiles ? plane_tiles_6 : plane_rows_6;
	case 8:
		return tiles ? plane_tiles_8 : plane_rows_8;
	case 12:
		return tiles ? plane_tiles_12 : plane_rows_12;
	case 16:
		return tiles ? plane_tiles_16 : plane_rows_16;
	default:
		return tiles ? plane_tiles_runs : plane_rows_runs;
	}
}

/* ---- all dimensions ---- */

static uint64_t distance(int64_t stride)
{
	return stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
}

/*
 * Chooses the dimension that makes the rows. If the source is densest in another dimension than the
 * innermost one, it is that dimension, and *@tiles becomes true. Otherwise it is the one next to
 * the innermost.
 */
static int row_dimension(const struct view *v, int64_t unit, bool *tiles)
{
	int columns = v->ndim - 1, row = columns - 1;

	*tiles = false;
	if (unit > TILE_UNIT_MAX || v->stride[columns] == 0)
		return row;
	for (int i = 0; i < columns; i++) {
		uint64_t best = *tiles ? distance(v->stride[row]) : distance(v->stride[columns]);

		if (v->stride[i] != 0 && distance(v->stride[i]) < best) {
			row = i;
			*tiles = true;
		}
	}
	return row;
}

static void view_remove(struct view *v, int at)
{
	v->ndim--;
	for (int i = at; i < v->ndim; i++) {
		v->shape[i] = v->shape[i + 1];
		v->stride[i] = v->stride[i + 1];
	}
}

/*
 * Counts through all dimensions of @v, the last one fastest. *@at, which starts at 0, is the offset
 * of the next position. Returns false after the last one, when everything is 0 again.
 */
static bool view_next(const struct view *v, const int64_t *step, int64_t *index, int64_t *at)
{
	for (int i = v->ndim - 1; i >= 0; i--) {
		*at += step[i];
		if (++index[i] < v->shape[i])
			return true;
		*at -= step[i] * v->shape[i];
		index[i] = 0;
	}
	return false;
}

static void gather_bytes(char *dst, const char *src, struct view *v)
{
	int64_t index[DIMS_MAX] = { 0 }, second[DIMS_MAX] = { 0 }, dst_step[DIMS_MAX];
	struct plane plane = { .unit = view_pop_run(v), .rows = 1, .columns = 1 };
	int64_t from = 0, to = 0, step = plane.unit;
	plane_copy *copy;
	bool tiles = false;
	int row = -1;

	for (int i = v->ndim - 1; i >= 0; i--) {
		dst_step[i] = step;
		step *= v->shape[i];
	}
	if (v->ndim >= 2)
		row = row_dimension(v, plane.unit, &tiles);
	if (v->ndim >= 1) {
		plane.columns = v->shape[v->ndim - 1];
		plane.src_col = v->stride[v->ndim - 1];
		view_remove(v, v->ndim - 1);
	}
	if (row >= 0) {
		plane.rows = v->shape[row];
		plane.src_row = v->stride[row];
		plane.dst_row = dst_step[row];
		view_remove(v, row);
		memmove(dst_step + row, dst_step + row + 1,
			(size_t)(v->ndim - row) * sizeof(*dst_step));
	}
	copy = plane_kernel(plane.unit, tiles);
	do {
		plane.src = src + from;
		plane.dst = dst + to;
		copy(&plane);
		view_next(v, dst_step, second, &to);
	} while (view_next(v, v->stride, index, &from));
}

/* ---- packed types ---- */

/* Fills bytes with bits, from the least significant bit on. */
struct bit_writer {
	unsigned char *at;
	uint32_t held; /* bits that do not fill a byte yet */
	unsigned fill; /* how many: 0 to 7 */
};

/* Returns 1 to 8 bits from bit @bit of @src on. Reads only bytes that have some of them, since
 * others may lie beyond the tensor. */
static uint32_t bits_at(const unsigned char *src, int64_t bit, unsigned n)
{
	const unsigned char *from = src + (bit >> 3);
	unsigned skip = (unsigned)(bit & 7);
	uint32_t value = from[0] >> skip;

	if (skip + n > 8)
		value |= (uint32_t)from[1] << (8 - skip);
	return value & ((1U << n) - 1);
}

static void bit_writer_append(struct bit_writer *w, const unsigned char *src, int64_t bit,
			      int64_t n)
{
	if (w->fill == 0 && (bit & 7) == 0 && n >= 8) {
		memcpy(w->at, src + (bit >> 3), (size_t)(n / 8));
		w->at += n / 8;
		bit += n & ~(int64_t)7;
		n &= 7;
	}
	while (n > 0) {
		unsigned take = (unsigned)at_most(n, 8);

		w->held |= bits_at(src, bit, take) << w->fill;
		w->fill += take;
		if (w->fill >= 8) {
			*w->at++ = (unsigned char)w->held;
			w->held >>= 8;
			w->fill -= 8;
		}
		bit += take;
		n -= take;
	}
}

static void bit_writer_finish(struct bit_writer *w)
{
	if (w->fill)
		*w->at = (unsigned char)w->held;
}

static void gather_bits(char *dst, const char *src, struct view *v)
{
	struct bit_writer w = { .at = (unsigned char *)dst };
	int64_t index[DIMS_MAX] = { 0 }, at = 0, run = view_pop_run(v), columns = 1, step = 0;

	if (v->ndim > 0) {
		columns = v->shape[v->ndim - 1];
		step = v->stride[v->ndim - 1];
		view_remove(v, v->ndim - 1);
	}
	do {
		for (int64_t c = 0; c < columns; c++)
			bit_writer_append(&w, (const unsigned char *)src, at + c * step, run);
	} while (view_next(v, v->stride, index, &at));
	bit_writer_finish(&w);
}

/* ---- entry ---- */

struct copying {
	char *dst;
	const char *src;
	struct view view; /* in bytes */
	int64_t size;	  /* bytes of the copy, for each position in the outermost dimension */
};

static void copy_run(const void *context, uint64_t begin, uint64_t end)
{
	const struct copying *c = context;

	memcpy(c->dst + begin, c->src + begin, end - begin);
}

static void copy_positions(const void *context, uint64_t begin, uint64_t end)
{
	const struct copying *c = context;
	struct view view = c->view;

	view.shape[0] = (int64_t)(end - begin);
	gather_bytes(c->dst + (int64_t)begin * c->size, c->src + (int64_t)begin * view.stride[0],
		     &view);
}

/* The tiles of a transposition are whole where each thread gets one large part. */
static void copy_strided(struct copying *c, int64_t nbytes, unsigned threads)
{
	int64_t positions = c->view.shape[0];

	c->size = positions ? nbytes / positions : 0;
	parallel_run(threads, (uint64_t)positions, ((uint64_t)positions + threads - 1) / threads,
		     copy_positions, c);
}

int copy_gather(void *dst, const DLTensor *src, uint64_t flags, uint32_t wanted)
{
	bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	uint32_t bits = tensor_element_bits(src->dtype, padded);
	struct copying c = { .dst = dst };
	uint64_t numel, nbytes;
	unsigned threads;
	int r = tensor_nbytes(src->dtype, src->ndim, src->shape, padded, &nbytes);

	if (!r)
		r = tensor_numel(src->ndim, src->shape, &numel);
	if (r || nbytes == 0)
		return r;
	c.src = (const char *)src->data + src->byte_offset;
	threads = parallel_threads(nbytes, wanted);
	if (tensor_is_contiguous(src)) {
		parallel_run(threads, nbytes, PARALLEL_BLOCK, copy_run, &c);
		if (numel * bits % 8) /* tensor_nbytes() bounds it: no overflow */
			c.dst[nbytes - 1] &= (char)((1 << (numel * bits % 8)) - 1);
	} else if (bits % 8 == 0) {
		view_init(&c.view, src, bits / 8);
		copy_strided(&c, (int64_t)nbytes, threads);
	} else {
		view_init(&c.view, src, bits);
		gather_bits(dst, c.src, &c.view);
	}
	return 0;
}
