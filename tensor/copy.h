/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a tensor of any strides into C order. */
#pragma once

#include <stdint.h>

#include <tensorlease/dlpack.h>

/*
 * Copies the elements of @src into @dst, which has space for tensor_nbytes() and does not overlap
 * it. Unused bits of the last byte become 0. @src must have passed tensor_check_source() with the
 * same @flags (DLPack's). So many threads copy as parallel_threads() makes of @wanted, but one
 * alone where elements of less than a byte have strides. Allocates nothing. Returns 0, or -EINVAL
 * or -EOVERFLOW if @src has not passed.
 */
int copy_gather(void *dst, const DLTensor *src, uint64_t flags, uint32_t wanted);
