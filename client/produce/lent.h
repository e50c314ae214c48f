/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a draft's tensor that its producer gets to write by: a copy, not believed. */
#pragma once

#include <stdint.h>

#include <tensorlease/dlpack.h>

/*
 * Makes @lent a copy of @t, whose shape and strides are one array with room behind them for those
 * of @lent.
 */
void lent_make(DLTensor *lent, const DLTensor *t);
/* 0, or -EINVAL and which member of @lent is not as in @t, which it was made from under @name. */
int lent_check(const DLTensor *lent, const DLTensor *t, const char *name);
