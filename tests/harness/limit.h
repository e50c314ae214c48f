/* SPDX-License-Identifier: Apache-2.0 */
/* How long tests wait for what must happen, before they give up. */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SLOWER = 3 };
#else
enum { TEST_SLOWER = 1 };
#endif

/* Tests that change what the library is looking at race with it on purpose, for example. */
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER true
#else
#define THREAD_SANITIZER false
#endif

/*
 * Returns @seconds, scaled by the one factor for all times: TEST_SLOWER, or more if
 * $TL_TEST_TIMEOUT, the seconds that a program of tests may take, is above the usual 600. Waits are
 * thus always shorter than tests.
 */
static inline unsigned test_limit(unsigned seconds)
{
	const char *text = getenv("TL_TEST_TIMEOUT");
	unsigned long program = text ? strtoul(text, NULL, 10) : 0;
	unsigned long scaled = program ? seconds * program / 600 : seconds;

	if (TEST_SLOWER > 1 && scaled < (unsigned long)seconds * TEST_SLOWER)
		scaled = (unsigned long)seconds * TEST_SLOWER;
	return scaled ? (unsigned)scaled : 1;
}

/*
 * A pause between two looks at what others do. The first hundred of a wait only yield, which is
 * quick. The later ones sleep, so that on a busy machine the wait does not take the processor from
 * what it waits for. @rounds starts at 0.
 */
static inline void test_pause(unsigned *rounds)
{
	const struct timespec ms = { .tv_nsec = 1000000 };

	if (++*rounds <= 100)
		sched_yield();
	else
		nanosleep(&ms, NULL);
}
