/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that the daemon hands out. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * May @size bytes of what the daemon gave us as @what be mapped? A regular file, not of hugetlbfs,
 * that has them; that it keeps them nobody can say. 0, or a negative errno.
 */
int descriptor_check(int fd, uint64_t size, const char *what);
/*
 * The same for a segment that the catalog calls sealed if @flags (enum segment_flag) say so: its
 * size can never change, so that touching it is never SIGBUS. If it is @published, nobody can get a
 * new way to write it either.
 */
int descriptor_check_segment(int fd, uint64_t size, uint32_t flags, bool published);
/* From now on nobody gets another way to write that sealed segment, which is mapped writable. */
int descriptor_seal_segment(int fd);
