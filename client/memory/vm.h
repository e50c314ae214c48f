/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel is asked and told about mappings. */
#pragma once

#include <stddef.h>

/* How many mappings a process may have. */
unsigned long map_count_max(void);

/* Finds out whether core dumps are to have tensors: TENSORLEASE_DUMP is 1 in the environment. To be
 * called when a client connects, since no other call may read that. */
void dumps_prepare(void);

/*
 * Leaves a mapping of tensors out of core dumps, unless they are to have it.
 * @map is what mmap() returned, and is returned. Keeps errno. The kernel would dump all of a
 * copy-on-write mapping of which one byte was written, and all of sealed memory.
 */
void *undumped(void *map, size_t size);
