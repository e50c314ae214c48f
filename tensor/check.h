/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a tensor from another library or process. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

enum { TENSOR_WHY_TEXT = 256 }; /* bytes that suffice for any text of these functions */

/*
 * Checks that the CPU can read @t as it is described. Trusts that t->shape and t->strides have ndim
 * items, and nothing else. On failure @why names the wrong member, its value and the limit.
 * -EINVAL: it breaks a rule of DLPack. -EOVERFLOW: it is impossibly large. -ENOTSUP: it lies on a
 * device that the CPU cannot read.
 */
int tensor_check_source(const DLTensor *t, uint64_t flags, char *why, size_t why_len);

/* The same for the type and the shape alone; returns the number of bytes of the elements in C
 * order. */
int tensor_check_shape(const DLTensor *t, uint64_t flags, uint64_t *nbytes, char *why,
		       size_t why_len);
