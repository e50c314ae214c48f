/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog of another daemon: its shape, and the versions that it may have given out. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/state/catalog.h"
#include "util/clock.h"

/* Reads the header in @fd into @h, and plans @cat as catalog_shape() does. CATALOG_E_STRANGE with
 * *why. */
int snapshot_shape(struct catalog *cat, int fd, struct catalog_header *h,
		   struct catalog_array *arrays[FACTS_ARRAYS], uint64_t *facts_size,
		   const char **why);

/* Reads the catalog of an ended instance for a daemon that does not adopt it. */

/*
 * The highest version that the instance may have given out, and at least @known, the highest when
 * it began. Returns @known if there is no catalog or it has another layout. Returns version_limit()
 * if the catalog is damaged, or if it is missing though @expected: another daemon of our user has
 * removed unused objects (util/leftovers.h), or the machine was restarted.
 */
uint64_t former_versions(uint64_t instance, bool expected, uint64_t known, uint64_t since);
