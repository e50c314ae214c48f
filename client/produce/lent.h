/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a draft's tensor that its producer gets to write by: a copy, not believed. */
#pragma once

#include <stdint.h>

#include <tensorlease/dlpack.h>

/* Makes @lent a copy of @t with shape and strides in @dims, which has room for twice t->ndim. */
void lent_make(DLTensor *lent, const DLTensor *t, int64_t *dims);
/* 0, or -EINVAL and which member of @lent is not as in @t, which it was made from under @name. */
int lent_check(const DLTensor *lent, const DLTensor *t, const int64_t *dims, const char *name);
