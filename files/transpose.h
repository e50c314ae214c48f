/* SPDX-License-Identifier: Apache-2.0 */
/* Fortran order into C order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* @src has elements of @size bytes with the first index fastest, @dst gets them with the last one
 * fastest. */
void transpose(void *dst, const void *src, size_t size, int32_t ndim, const int64_t *shape);
