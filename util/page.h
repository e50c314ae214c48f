/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's pages: of 4 KiB, or of 16 or 64 KiB, as some kernels for aarch64 have them. */
#pragma once

#include <stdint.h>
#include <unistd.h>

static inline uint64_t page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* @n, rounded down or up to whole pages. */
static inline uint64_t page_floor(uint64_t n)
{
	return n & ~(page_size() - 1);
}

static inline uint64_t page_ceil(uint64_t n)
{
	return page_floor(n + page_size() - 1);
}
