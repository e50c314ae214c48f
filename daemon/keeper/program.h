/* SPDX-License-Identifier: Apache-2.0 */
/* The path of our own program. */
#pragma once

#include <limits.h>

/*
 * Finds the path by which we were started, as @name, in @directory: a link in it may lead to
 * another program by the time of a restart. If @name is something else, finds where the program
 * is. A negative errno if neither can be told.
 */
int program_find(char path[PATH_MAX], const char *name, const char *directory);
