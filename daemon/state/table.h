/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large zeroed tables, of which only the part in use takes memory. Helpers have none: as long as
 * one had them, each page that we write would be copied first.
 */
#pragma once

#include <stddef.h>
#include <sys/mman.h>

static inline void *table_new(size_t count, size_t size)
{
	void *map = mmap(NULL, count * size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	madvise(map, count * size, MADV_DONTFORK);
	return map;
}

static inline void *table_free(void *table, size_t count, size_t size)
{
	if (table)
		munmap(table, count * size);
	return NULL;
}
