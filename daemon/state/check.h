/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a catalog that another daemon left: could a daemon have left it, at any moment? Nothing in
 * it is trusted before that: no index, no extent, no length of a chain. Without facts the checks
 * that need them are left out.
 */
#pragma once

#include <stdbool.h>

#include "daemon/state/catalog.h"

/* A place in a small segment in which rows lie. */
struct check_place {
	uint32_t segment, begin, end, slot;
};

/* A ring, as its rows say. */
struct check_ring {
	uint64_t ref;
	uint64_t places; /* of its rows */
	uint32_t name;
};

struct check {
	const struct catalog *cat;
	unsigned char *linked; /* by name: it is in a bucket */
	unsigned char *chunks; /* by chunk: it is in use */
	struct check_ring *rings;
	struct check_place *places;
	uint32_t place_count;
	/* Is told of each thing that is wrong. NULL: the first one ends the check. */
	void (*found)(struct check *check);
	void *context;
	uint64_t evidence; /* a hash of the entries that @why is about */
	char why[160];
};

/* CATALOG_E_STRANGE with check.why, or -ENOMEM. The check is made in any case. */
int check_init(struct check *check, const struct catalog *cat);
/* The same, but @found is told of all that is wrong, and it returns 0 then. */
int check_init_all(struct check *check, const struct catalog *cat,
		   void (*found)(struct check *check), void *context);
void check_deinit(struct check *check);

/* Then checks the invariants that hold only while the daemon rests. */
int check_at_rest(struct check *check);

/* Does the row lie in a place of a segment that lives? */
bool check_row_place(const struct catalog *cat, uint32_t slot);
/* How many chunks the row has. */
uint32_t check_row_chunks(const struct catalog_row *row);
/* Of all that is constant in a row while it is published; of a member of a group, without its
 * version, which may change until then. */
uint32_t check_row_sum(const struct catalog *cat, uint32_t slot);
uint32_t check_member_sum(const struct catalog *cat, uint32_t slot);
/* Of all that is constant in a row as long as it is a ring's, and a generation. */
uint32_t check_ring_sum(const struct catalog *cat, uint32_t slot, uint64_t generation);
/* Is it one of the rows among which the ring's producer publishes? */
bool check_is_slot(const struct catalog *cat, const struct catalog_row *row);
/* Of a segment's fact, and of what is constant in its entry, in the life of that generation. */
uint32_t check_segment_sum(const struct segment_fact *fact, const struct catalog_segment *row,
			   uint32_t generation);
