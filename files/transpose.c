/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last index are walked in tiles, so that neither side jumps through memory. The
 * others are counted. */
#include <string.h>

#include "files/transpose.h"

enum { TILE = 32, NDIM_MAX = 64 };

struct plane {
	char *dst;
	const char *src;
	size_t size;
	int64_t rows, columns; /* the sizes of the first and the last index */
	int64_t dst_row;       /* elements from one row to the next */
	int64_t src_column;
};

static void copy_tile(const struct plane *p, int64_t row, int64_t column)
{
	int64_t rows = row + TILE < p->rows ? row + TILE : p->rows;
	int64_t columns = column + TILE < p->columns ? column + TILE : p->columns;
	size_t size = p->size;

	for (int64_t r = row; r < rows; r++) {
		for (int64_t c = column; c < columns; c++)
			memcpy(p->dst + (size_t)(r * p->dst_row + c) * size,
			       p->src + (size_t)(c * p->src_column + r) * size, size);
	}
}

static void copy_plane(const struct plane *p)
{
	for (int64_t row = 0; row < p->rows; row += TILE) {
		for (int64_t column = 0; column < p->columns; column += TILE)
			copy_tile(p, row, column);
	}
}

void transpose(void *dst, const void *src, size_t size, int32_t ndim, const int64_t *shape)
{
	int64_t index[NDIM_MAX] = { 0 }, dst_step[NDIM_MAX], src_step[NDIM_MAX], count = 1;
	struct plane p = { .dst = dst, .src = src, .size = size };
	int32_t at;

	for (int32_t i = 0; i < ndim; i++) {
		src_step[i] = count;
		count *= shape[i];
	}
	if (!count)
		return;
	if (ndim < 2) {
		memcpy(dst, src, (size_t)count * size);
		return;
	}
	count = 1;
	for (int32_t i = ndim - 1; i >= 0; i--) {
		dst_step[i] = count;
		count *= shape[i];
	}
	p.rows = shape[0];
	p.columns = shape[ndim - 1];
	p.dst_row = dst_step[0];
	p.src_column = src_step[ndim - 1];
	do {
		copy_plane(&p);
		for (at = ndim - 2; at > 0; at--) {
			p.dst += (size_t)dst_step[at] * size;
			p.src += (size_t)src_step[at] * size;
			if (++index[at] < shape[at])
				break;
			p.dst -= (size_t)(dst_step[at] * shape[at]) * size;
			p.src -= (size_t)(src_step[at] * shape[at]) * size;
			index[at] = 0;
		}
	} while (at > 0);
}
