/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the catalog of an ended instance for a daemon that does not adopt it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"

/*
 * The highest version that is believed of an instance that knew @known to be the highest at @since,
 * by CLOCK_MONOTONIC. No name is published every nanosecond, so a version above both that and the
 * time is a lie or damage. The time alone would be no limit: versions may have begun there, before
 * it was set back. The limit rises only as fast as time passes, whatever is believed below it. So
 * versions stay far from the largest number.
 */
static inline uint64_t version_limit(uint64_t known, uint64_t since)
{
	uint64_t most = known + ((uint64_t)now_mono_ns() - since), now = (uint64_t)now_real_ns();

	return most > now ? most : now;
}

/*
 * The highest version that the instance may have given out, and at least @known, the highest when
 * it began. Returns @known if there is no catalog or it has another layout. Returns version_limit()
 * if the catalog is damaged, or if it is missing though @expected: another daemon of our user has
 * removed unused objects (util/leftovers.h), or the machine was restarted.
 */
uint64_t former_versions(uint64_t instance, bool expected, uint64_t known, uint64_t since);
