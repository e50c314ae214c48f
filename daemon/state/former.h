/* SPDX-License-Identifier: Apache-2.0 */
/* What the catalog of an ended instance says to a daemon that begins without it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"

/*
 * Nobody publishes a name in each nanosecond, so that a version above the time is a lie or damage.
 * What is believed up to here does not come near the end of the numbers.
 */
static inline uint64_t version_limit(void)
{
	return (uint64_t)now_real_ns();
}

/*
 * The highest version that the instance may have given out, and at least @known, which was so when
 * it began. @known: there is no catalog, or it has another layout. If it is damaged that is
 * version_limit(), and if it is not there though @expected: another daemon of our user has removed
 * what nobody had open (util/leftovers.h), or the machine was started anew.
 */
uint64_t former_versions(uint64_t instance, bool expected, uint64_t known);
