/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tests/harness/harness.h"

/* What a test that draws numbers starts from: $TL_TEST_SEED, or @usual. It is printed. */
static inline uint64_t test_seed(uint64_t usual)
{
	const char *text = getenv("TL_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 10) : usual;

	print_message("seed %llu (TL_TEST_SEED sets it)\n", (unsigned long long)seed);
	return seed;
}
