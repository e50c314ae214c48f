/* SPDX-License-Identifier: Apache-2.0 */
/* Large zeroed tables, of which only the part in use takes memory. */
#pragma once

#include <stddef.h>
#include <sys/mman.h>

static inline void *table_new(size_t count, size_t size)
{
	void *map = mmap(NULL, count * size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

static inline void *table_free(void *table, size_t count, size_t size)
{
	if (table)
		munmap(table, count * size);
	return NULL;
}
