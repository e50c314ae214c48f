/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what comes from outside: the arguments of callers, and received descriptors. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

/* Checks the arguments of callers. */

/*
 * Copies as much of an option struct as the caller's version has, and sets the rest to 0. The
 * struct starts with its size. -EINVAL: it is smaller than the first version, or members that we do
 * not know are not 0.
 */
int client_options(void *to, size_t to_size, const void *from, size_t first_size, const char *what);

/*
 * For structs that we fill for a caller, which start with their size. client_result_check() refuses
 * one that is smaller than the first version, @least. client_result() then fills it from @from, of
 * which @known bytes are known here, as far as it has space, and sets the rest to 0.
 */
int client_result_check(const void *result, size_t least, const char *what);
void client_result(void *result, void *from, size_t known);

/* client_options() for the options of a wait. @from may be NULL. */
int client_wait_options(tl_wait_options *to, const tl_wait_options *from);

/* -EINVAL, with the reason in the text, if @name is not a valid name. */
int client_check_name(const char *name, size_t len);

/* Writes to @start what the names below @prefix start with: see tensor_prefix(). -EINVAL, with the
 * reason in the text, if no name can be below it. */
int client_prefix(char start[TL_NAME_MAX + 1], const char *prefix);

/* -EINVAL if @mode, which @what has, is neither of the two. */
int client_check_mode(enum tl_mode mode, const char *what);

/* Descriptors received from the daemon. */

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
