/* SPDX-License-Identifier: Apache-2.0 */
/* Element types in words, and how much room shapes of them take. */
#pragma once

#include <stdint.h>

#include <tensorlease/dlpack.h>

enum { FILE_DTYPE_TEXT = 48 };

#define FILE_BYTES_MAX (UINT64_MAX / 8) /* 2^61 - 1: their bits can be counted */

/* "float32", "bfloat16", "float8_e4m3fn", "int4", "float32x4" with lanes; @text. */
const char *file_dtype_text(DLDataType t, char text[FILE_DTYPE_TEXT]);

/*
 * Bits of that many packed elements. A size of 0 does not excuse the others: they must make a
 * number of bytes without it. -EOVERFLOW: over FILE_BYTES_MAX bytes.
 */
int file_count_bits(DLDataType t, int32_t ndim, const int64_t *shape, uint64_t *bits);
