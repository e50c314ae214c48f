/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers from the environment, and times that tests measure. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "tests/harness/harness.h"

/* The number in that variable of the environment; without one, or with 0, @otherwise. */
static inline unsigned test_number(const char *variable, unsigned otherwise)
{
	const char *text = getenv(variable);
	unsigned number = text ? (unsigned)strtoul(text, NULL, 0) : 0;

	return number ? number : otherwise;
}

static inline int by_time(const void *x, const void *y)
{
	uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

	return (a > b) - (a < b);
}

/* Sorts @n times in nanoseconds, at least one, and prints what they say of @what. */
static inline void times_print(const char *what, uint64_t *ns, unsigned n)
{
	uint64_t median, p99;

	qsort(ns, n, sizeof(*ns), by_time);
	median = ns[n / 2];
	p99 = ns[(uint64_t)n * 99 / 100];
	print_message("%u %s after %.1f ms (median), %.1f ms (p99), %.1f ms (most)\n", n, what,
		      (double)median / 1e6, (double)p99 / 1e6, (double)ns[n - 1] / 1e6);
}
