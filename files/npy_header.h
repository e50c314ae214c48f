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

/*
 * Reads the @len bytes of @header into dtype, ndim, shape, nbytes and fortran_order of *npy. -EINVAL: it is not
 * one; -ENOTSUP: a type that is not shared. @why says what and where.
 */
int npy_header_parse(struct npy *npy, const char *header, size_t len, char why[NPY_WHY_TEXT]);

/* numpy's text for @t, "<f4". -ENOTSUP and why. */
int npy_descr_format(DLDataType t, char descr[NPY_DESCR_TEXT], char why[NPY_WHY_TEXT]);

/*
 * Everything before the data, in C order: *len bytes, a multiple of 64; *nbytes of data follow. -EINVAL: not a
 * shape; -EOVERFLOW: too large; -ENOTSUP as npy_descr_format().
 */
int npy_preamble_format(DLDataType t, int32_t ndim, const int64_t *shape,
			char preamble[NPY_PREAMBLE_MAX], size_t *len, uint64_t *nbytes,
			char why[NPY_WHY_TEXT]);
