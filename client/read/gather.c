/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies many tensors, or parts of them, one behind the other. All are leased first, as of one
 * moment, so that nothing is copied if one is missing. Copies that are large are made by several
 * threads.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/error.h"
#include "client/read/gather.h"
#include "client/read/get.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "util/parallel.h"

/* ---- copies ---------------------------------------------------------------------------------- */

/* What is copied to one of the outs: @count rows of @row bytes. */
struct rows {
	unsigned char *to;
	const void *const *from;
	size_t row;
};

struct gathering {
	size_t count; /* of the tensors */
	struct rows *rows;
	size_t nrows; /* how many outs there are */
	const void **from;
	DLManagedTensorVersioned **tensors;
	size_t bytes; /* of all rows */
};

/* Copies the bytes [begin, end) of what one out gets. */
static void copy_rows(const struct rows *r, size_t begin, size_t end)
{
	while (begin < end) {
		size_t i = begin / r->row, at = begin % r->row;
		size_t n = end - begin < r->row - at ? end - begin : r->row - at;

		memcpy(r->to + begin, (const unsigned char *)r->from[i] + at, n);
		begin += n;
	}
}

/* Copies the bytes [begin, end) of all of it. */
static void copy_bytes(const void *context, uint64_t begin, uint64_t end)
{
	const struct gathering *g = context;

	for (size_t i = 0; i < g->nrows && begin < end; i++) {
		size_t size = g->count * g->rows[i].row;

		if (begin < size)
			copy_rows(&g->rows[i], begin, end < size ? end : size);
		begin = begin < size ? 0 : begin - size;
		end = end < size ? 0 : end - size;
	}
}

/* ---- what is copied -------------------------------------------------------------------------- */

static int differs(const char *name, const DLTensor *t, const DLTensor *out)
{
	char is[TENSOR_DTYPE_TEXT], wanted[TENSOR_DTYPE_TEXT];

	for (int i = 0; i < t->ndim && t->ndim == out->ndim - 1; i++) {
		if (t->shape[i] != out->shape[i + 1] && tensor_dtype_same(t->dtype, out->dtype))
			return tl_fail(-EINVAL,
				       "'%s' has %" PRId64 " elements in dimension %d, and a row "
				       "of the array has %" PRId64
				       ": all of one shape and dtype can be gathered",
				       name, t->shape[i], i, out->shape[i + 1]);
	}
	return tl_fail(
		-EINVAL,
		"'%s' is of %s and %d dimensions, and does not fit into a row of the array, "
		"which is of %s and %d dimensions: all of one shape and dtype can be gathered",
		name, tensor_dtype_format(t->dtype, is), t->ndim,
		tensor_dtype_format(out->dtype, wanted), out->ndim - 1);
}

static bool is_a_row(const DLTensor *t, const DLTensor *out)
{
	return t->ndim == out->ndim - 1 && tensor_dtype_same(t->dtype, out->dtype) &&
	       (!t->ndim || !memcmp(t->shape, out->shape + 1, (size_t)t->ndim * sizeof(*t->shape)));
}

/* Finds where the bytes for row @i of @out begin in its tensor. */
static int row_find(const struct gathering *g, const tl_gather_out *out, size_t row, size_t i,
		    const char *name, const void **from)
{
	const DLTensor *t = &g->tensors[i]->dl_tensor;
	uint64_t nbytes = 0, offset = out->offsets ? out->offsets[i] : 0;

	if (t->device.device_type != kDLCPU)
		return tl_fail(-ENOTSUP, "'%s' is on a GPU, where nothing can be gathered", name);
	if (!out->offsets && !is_a_row(t, out->tensor))
		return differs(name, t, out->tensor);
	tensor_nbytes(t->dtype, t->ndim, t->shape, tensor_is_padded(g->tensors[i]->flags), &nbytes);
	if (offset > nbytes || row > nbytes - offset)
		return tl_fail(-EINVAL, "'%s' has %llu bytes: there are not %zu at offset %llu",
			       name, (unsigned long long)nbytes, row, (unsigned long long)offset);
	*from = (const unsigned char *)t->data + t->byte_offset + offset;
	return 0;
}

/* Checks an out, before anything is got. */
static int out_check(const tl_gather_out *out, size_t i, size_t count, size_t *row)
{
	const DLTensor *t = out->tensor;
	uint64_t nbytes = 0;
	int r;

	if (!t)
		return tl_fail(-EINVAL, "tl_gather: the tensor of out %zu is NULL", i);
	if (t->device.device_type != kDLCPU && t->device.device_type != kDLCUDAHost)
		return tl_fail(-ENOTSUP, "out %zu is on a device of type %d, not in host memory", i,
			       (int)t->device.device_type);
	r = t->ndim < 1 ? -EINVAL : tensor_nbytes(t->dtype, t->ndim, t->shape, false, &nbytes);
	if (r || t->shape[0] != (int64_t)count || !tensor_is_contiguous(t))
		return tl_fail(-EINVAL,
			       "out %zu is not in C order with %zu rows, one for each tensor", i,
			       count);
	if (count && nbytes % count)
		return tl_fail(-EINVAL, "rows of out %zu are not whole bytes", i);
	*row = count ? nbytes / count : 0;
	return 0;
}

static int rows_find(struct gathering *g, const char *const *names, const tl_gather_out *outs)
{
	for (size_t k = 0; k < g->nrows; k++) {
		const void **from = g->from + k * g->count;

		for (size_t i = 0; i < g->count; i++) {
			int r = row_find(g, &outs[k], g->rows[k].row, i, names[i], &from[i]);

			if (r)
				return r;
		}
		g->rows[k].from = from;
		g->rows[k].to = (unsigned char *)outs[k].tensor->data + outs[k].tensor->byte_offset;
		g->bytes += g->rows[k].row * g->count;
	}
	return 0;
}

static int gather_into(struct gathering *g, tl_client *client, const char *const *names,
		       const tl_gather_out *outs, const tl_gather_options *o)
{
	const tl_get_options get = { .size = sizeof(get),
				     .timeout_ns = o->timeout_ns,
				     .stream = TL_STREAM_NONE };
	int r = 0;

	for (size_t k = 0; k < g->nrows && !r; k++)
		r = out_check(&outs[k], k, g->count, &g->rows[k].row);
	if (!r)
		r = get_many(client, names, g->count, &get, g->tensors);
	if (r)
		return r;
	r = rows_find(g, names, outs);
	if (!r)
		parallel_run(parallel_threads(g->bytes, o->threads), g->bytes, PARALLEL_BLOCK,
			     copy_bytes, g);
	for (size_t i = 0; i < g->count; i++)
		g->tensors[i]->deleter(g->tensors[i]);
	return r;
}

int gather(tl_client *client, const char *const *names, size_t count, const tl_gather_out *outs,
	   size_t nouts, const tl_gather_options *options)
{
	struct gathering g = { .count = count, .nrows = nouts };
	int r;

	g.rows = calloc(nouts + 1, sizeof(*g.rows));
	g.from = calloc(nouts * count + 1, sizeof(*g.from));
	g.tensors = calloc(count + 1, sizeof(DLManagedTensorVersioned *));
	r = g.rows && g.from && g.tensors ? gather_into(&g, client, names, outs, options)
					  : tl_fail(-ENOMEM, "no memory for %zu tensors", count);
	free(g.rows);
	free(g.from);
	free(g.tensors);
	return r;
}
