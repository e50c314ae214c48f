/* SPDX-License-Identifier: Apache-2.0 */
/* How long tests wait for what must happen, before they give up. */
#pragma once

#include <stdlib.h>

/*
 * @seconds on a machine on which a program of tests may take the usual 600; where $TL_TEST_TIMEOUT
 * gives it more, so much more. Waits are then shorter than tests, and tests shorter than programs,
 * whatever that is.
 */
static inline unsigned test_limit(unsigned seconds)
{
	const char *text = getenv("TL_TEST_TIMEOUT");
	unsigned long program = text ? strtoul(text, NULL, 10) : 0;
	unsigned long scaled = program ? seconds * program / 600 : seconds;

	return scaled ? (unsigned)scaled : 1;
}
