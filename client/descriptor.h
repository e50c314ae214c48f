/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors received from the daemon. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Checks that @size bytes of a descriptor can be mapped: it is a regular file of that size, and not
 * on hugetlbfs. The file may still shrink later. @what names it in the error text. Returns 0, or a
 * negative errno.
 */
int descriptor_check(int fd, uint64_t size, const char *what);
/*
 * The same for a segment. If @flags (enum segment_flag) call it sealed, its size can never change,
 * so that no access raises SIGBUS. If it is also @published, nobody can open or map it for writing
 * any more.
 */
int descriptor_check_segment(int fd, uint64_t size, uint32_t flags, bool published);
/* The same for the page of a ring, which always has that seal of its size. */
int descriptor_check_page(int fd, uint64_t size);
/* Seals a segment that is mapped writable, so that nobody can open or map it for writing again. */
int descriptor_seal_segment(int fd);
