/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a .npy file: a Python dictionary of a type, an order and a shape. For npy.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "files/npy.h"

enum {
	NPY_WHY_TEXT = 256,
	NPY_DESCR_TEXT = 8,
	NPY_PREAMBLE_MAX = 2048, /* 64 sizes of 19 digits fit */
};

/* Up to @size bytes of a file, in *got; fewer at the end only. An error is told to @to. */
typedef int (*npy_source)(void *context, void *dst, size_t size, size_t *got,
			  const struct report *to);

/*
 * Reads what is before the data: *size bytes, of which dtype, ndim, shape, nbytes and fortran_order
 * of *npy follow. -EINVAL: it is not a .npy file; -ENOTSUP: a type that is not shared. @to says
 * what and where.
 */
int npy_header_read(struct npy *npy, npy_source source, void *context, uint64_t *size,
		    const struct report *to);

/* numpy's text for @t, "<f4". -ENOTSUP and why. */
int npy_descr_format(DLDataType t, char descr[NPY_DESCR_TEXT], char why[NPY_WHY_TEXT]);

/*
 * Everything before the data, in C order: *len bytes, a multiple of 64; *nbytes of data follow.
 * -EINVAL: not a shape; -EOVERFLOW: too large; -ENOTSUP as npy_descr_format().
 */
int npy_preamble_format(DLDataType t, int32_t ndim, const int64_t *shape,
			char preamble[NPY_PREAMBLE_MAX], size_t *len, uint64_t *nbytes,
			char why[NPY_WHY_TEXT]);
