/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks whether a daemon can have left this catalog, at any moment of its work. Before that no
 * index, extent or chain length in it is trusted. Without facts, checks that need them are skipped.
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
/* The same, but calls @found for every error, and then returns 0. */
int check_init_all(struct check *check, const struct catalog *cat,
		   void (*found)(struct check *check), void *context);
void check_deinit(struct check *check);

/* Checks the invariants that hold only while the daemon is idle. To be called after
 * check_init(). */
int check_at_rest(struct check *check);

/* True if the row lies in an extent of a live segment. */
bool check_row_extent(const struct catalog *cat, uint32_t slot);
/* The number of chunks of the row. */
uint32_t check_row_chunks(const struct catalog_row *row);
/* A checksum of the members of a row that are constant while it is published. The one of a group's
 * member leaves out its version, which may change until the group is published. */
uint32_t check_row_sum(const struct catalog *cat, uint32_t slot);
uint32_t check_member_sum(const struct catalog *cat, uint32_t slot);
/* A checksum of a generation, and of the members of a row that are constant as long as it is a
 * ring's. */
uint32_t check_ring_sum(const struct catalog *cat, uint32_t slot, uint64_t generation);
/* True if the row belongs to a ring. If that is over, a row that has a version needs it no more,
 * and belongs to it only until the daemon has noted its end in the facts. */
bool check_is_of_ring(const struct catalog *cat, const struct catalog_row *row);
/* True if it is one of the rows among which a ring's producer publishes. */
bool check_is_slot(const struct catalog *cat, const struct catalog_row *row);
/* A checksum of a segment's fact, and of the constant members of its entry, for that generation. */
uint32_t check_segment_sum(const struct segment_fact *fact, const struct catalog_segment *row,
			   uint32_t generation);
