/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a tensor that somebody else made. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

enum { TENSOR_WHY_TEXT = 256 }; /* bytes that suffice for any text of tensor_check_source() */

/*
 * May the CPU read @t as it says it is? Trusts that t->shape and t->strides have ndim items, and
 * nothing else. If not, @why says which member is wrong, its value and the limit. -EINVAL: it
 * breaks a rule of DLPack. -EOVERFLOW: it is so large that it cannot be true. -ENOTSUP: it lies on
 * a device that the CPU cannot read.
 */
int tensor_check_source(const DLTensor *t, uint64_t flags, char *why, size_t why_len);
