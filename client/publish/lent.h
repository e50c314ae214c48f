/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a draft's tensor that its producer gets for writing. It is a copy, and not
 * trusted. */
#pragma once

#include <stdint.h>

#include <tensorlease/dlpack.h>

/*
 * Makes @lent a copy of @t, whose shape and strides are one array with space behind them for those
 * of @lent.
 */
void lent_make(DLTensor *lent, const DLTensor *t);
/* Returns 0, or -EINVAL and in the text the member of @lent that differs from @t, from which it was
 * made under @name. */
int lent_check(const DLTensor *lent, const DLTensor *t, const char *name);
