/* SPDX-License-Identifier: Apache-2.0 */
/* How long tests wait for what must happen, before they give up. */
#pragma once

#include <stdlib.h>

/*
 * Returns @seconds, scaled with $TL_TEST_TIMEOUT, the seconds that a program of tests may take (600
 * if it is not set). Waits are thus always shorter than tests, and tests shorter than programs.
 */
static inline unsigned test_limit(unsigned seconds)
{
	const char *text = getenv("TL_TEST_TIMEOUT");
	unsigned long program = text ? strtoul(text, NULL, 10) : 0;
	unsigned long scaled = program ? seconds * program / 600 : seconds;

	return scaled ? (unsigned)scaled : 1;
}
