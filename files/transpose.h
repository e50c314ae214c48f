/* SPDX-License-Identifier: Apache-2.0 */
/* Converts Fortran order to C order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * In @src, which has elements of @size bytes, the first index varies fastest. In @dst the last one
 * does.
 */
void transpose(void *dst, const void *src, size_t size, int32_t ndim, const int64_t *shape);
