/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the catalog of an ended instance for a daemon that does not adopt it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/clock.h"

/* The highest version that is believed. No name is published every nanosecond, so a version above
 * the time is a lie or damage. Versions below it stay far from the largest number. */
static inline uint64_t version_limit(void)
{
	return (uint64_t)now_real_ns();
}

/*
 * The highest version that the instance may have given out, and at least @known, the highest when
 * the instance began. Returns @known if there is no catalog or it has another layout. Returns
 * version_limit() if the catalog is damaged, or if it is missing though @expected: another daemon
 * of our user has removed unused objects (util/leftovers.h), or the machine was restarted.
 */
uint64_t former_versions(uint64_t instance, bool expected, uint64_t known);
