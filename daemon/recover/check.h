/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks whether a daemon can have left this catalog, at any moment of its work. Before this check
 * no index, extent or chain length in it is trusted. Without facts, checks that need them are
 * skipped.
 */
#pragma once

#include <stdbool.h>

#include "daemon/state/catalog.h"

/* The extent of a row in a small segment. */
struct check_extent {
	uint32_t segment, begin, end, slot;
};

/* A ring, as its rows describe it. */
struct check_ring {
	uint64_t ref;
	uint64_t slots; /* of its rows */
	uint32_t name;
};

struct check {
	const struct catalog *cat;
	unsigned char *linked; /* by name: it is in a bucket */
	unsigned char *chunks; /* by chunk: it is in use */
	struct check_ring *rings;
	struct check_extent *extents;
	uint32_t extent_count;
	/* Called for each error. NULL: the first error ends the check. */
	void (*found)(struct check *check);
	void *context;
	uint64_t evidence; /* a hash of the entries that are wrong */
	char why[160];
};

/* Returns CATALOG_E_STRANGE with check.why, or -ENOMEM. @check must be deinitialized in any
 * case. */
int check_init(struct check *check, const struct catalog *cat);
/* Does the same, but calls @found for every error, and then returns 0. */
int check_init_all(struct check *check, const struct catalog *cat,
		   void (*found)(struct check *check), void *context);
void check_deinit(struct check *check);

/* True if the row lies in an extent of a live segment. */
bool check_row_extent(const struct catalog *cat, uint32_t slot);
