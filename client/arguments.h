/* SPDX-License-Identifier: Apache-2.0 */
/* Checking what callers hand in. */
#pragma once

#include <stddef.h>

#include <tensorlease/tensorlease.h>

/*
 * Copies an option struct that starts with its size: what the caller's version has of it; the rest
 * is 0. -EINVAL: too small for the first version, or members that we do not know are not 0.
 */
int client_options(void *to, size_t to_size, const void *from, size_t first_size, const char *what);

/*
 * A struct that the caller has us fill: it starts with its size. client_result_check() refuses one
 * that is smaller than the first version, @least; client_result() then fills it with as much of
 * @from, of which @known bytes are known here, as it has room for, and sets the rest to 0.
 */
int client_result_check(const void *result, size_t least, const char *what);
void client_result(void *result, void *from, size_t known);

/* The same for those of a wait. @from may be NULL. */
int client_wait_options(tl_wait_options *to, const tl_wait_options *from);

/* -EINVAL, with why in the text, if @name is not a name. */
int client_check_name(const char *name, size_t len);
