/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that the daemon hands out. */
#pragma once

#include <stdint.h>

/*
 * May @size bytes of what the daemon gave us as @what be mapped? A regular file, not of hugetlbfs,
 * that has them; that it keeps them nobody can say. 0, or a negative errno.
 */
int descriptor_check(int fd, uint64_t size, const char *what);
