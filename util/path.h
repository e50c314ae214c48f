/* SPDX-License-Identifier: Apache-2.0 */
/* Paths. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

/* Whether there is anything at @path. Where we may not look there can be something, so it is true
 * there. */
static inline bool path_may_exist(const char *path)
{
	return !access(path, F_OK) || (errno != ENOENT && errno != ENOTDIR);
}
