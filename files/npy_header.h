/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a .npy file: a Python dictionary with a type, an order and a shape. Only npy.c and
 * npz.c use this.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "files/npy.h"

enum {
	NPY_WHY_TEXT = 256,
	NPY_DESCR_TEXT = 8,
	NPY_PREAMBLE_MAX = 2048, /* space for 64 sizes of 19 digits */
};

/*
 * Reads up to @size bytes and stores how many in *got, fewer only at the end. Reports an error to
 * @to.
 */
typedef int (*npy_source)(void *context, void *dst, size_t size, size_t *got,
			  const struct report *to);

/*
 * Reads everything before the data, and stores its length in *size. Sets dtype, ndim, shape, nbytes
 * and fortran_order of *npy. -EINVAL: it is not a .npy file. -ENOTSUP: it has a type that cannot be
 * shared. @to gets the text.
 */
int npy_header_read(struct npy *npy, npy_source source, void *context, uint64_t *size,
		    const struct report *to);

/* Writes numpy's text for @t, such as "<f4". -ENOTSUP: it has none. */
int npy_descr_format(DLDataType t, char descr[NPY_DESCR_TEXT], char why[NPY_WHY_TEXT]);

/*
 * Writes everything before the data, in C order: *len bytes, a multiple of 64. Stores the size of
 * the data in *nbytes. -EINVAL: the shape is invalid. -EOVERFLOW: it is too large. -ENOTSUP: as
 * npy_descr_format().
 */
int npy_preamble_format(DLDataType t, int32_t ndim, const int64_t *shape,
			char preamble[NPY_PREAMBLE_MAX], size_t *len, uint64_t *nbytes,
			char why[NPY_WHY_TEXT]);
