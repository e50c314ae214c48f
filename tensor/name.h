/* SPDX-License-Identifier: Apache-2.0 */
/* The rules for tensors' names. On -EINVAL *@why is a static text. */
#pragma once

#include <stddef.h>

#include "tensor/limits.h"

/*
 * A name has 1 to TENSOR_NAME_MAX bytes of well-formed UTF-8 without control characters. Its
 * components are separated by `/`; none is empty, `.` or `..`. @name need not end with NUL.
 */
int tensor_name_check(const char *name, size_t len, const char **why);

/*
 * A prefix is a path: "a/b" and "a/b/" both mean the names that have further components below it,
 * and "" means all names. Writes to @start what those names start with: "a/b/", or "".
 */
int tensor_prefix(char start[TENSOR_NAME_MAX + 1], const char *prefix, size_t len,
		  const char **why);

/*
 * A namespace's name has 1 to TENSOR_NAMESPACE_MAX letters, digits, `.`, `_` and `-`, and starts
 * with a letter or a digit.
 */
int tensor_namespace_check(const char *name, size_t len, const char **why);
