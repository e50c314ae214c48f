/* SPDX-License-Identifier: Apache-2.0 */
/* Survival: keeps descriptors for the next daemon (daemon/keeper/keeper_link.h), and the facts that
 * belong to them (facts.h). These functions do nothing if there are no facts. */
#pragma once

#include "daemon/keeper/keeper_link.h"
#include "daemon/state/catalog.h"
#include "daemon/state/common.h"

enum survivor {
	SURVIVOR_CATALOG,
	SURVIVOR_FACTS,
	SURVIVOR_LEDGER,
	SURVIVOR_OBJECT,
	SURVIVOR_SOCKET,
	SURVIVOR_HOLD,
	SURVIVOR_PAGE,
};

/* The tag under which a descriptor of that catalog is kept. */
void survive_tag(char tag[KEEPER_TAG_SIZE], enum survivor what, uint64_t instance, uint32_t index,
		 uint32_t generation);

/* Tells clients how this daemon began, and whether their tensors survive it. */
void survive_publish(const struct common *common, const struct catalog *cat);

/* Has the keeper keep the facts, and also the catalog, since an object that no process has open
 * counts as a leftover (util/leftovers.h). */
void survive_begin(const struct common *common, const struct catalog *cat);
void survive_end(const struct common *common, const struct catalog *cat);

/* Makes the next daemon read the ledger of the client at @index, too. To be called before the
 * client may take a lease. */
void survive_client(const struct common *common, const struct catalog *cat, uint32_t index,
		    const struct client_fact *fact, int ledger_fd_peek);
void survive_client_ended(const struct common *common, const struct catalog *cat, uint32_t index);

/* Gives the claim at @index to @fact->client, or ends it. */
void survive_claim(const struct catalog *cat, uint32_t index, const struct claim_fact *fact);
void survive_claim_ended(const struct catalog *cat, uint32_t index);

/* Stores a handover, or ends it. */
void survive_handover(const struct catalog *cat, uint32_t index, const struct handover_fact *fact);
void survive_handover_ended(const struct catalog *cat, uint32_t index);

/* To be called before the segment at @index lives. @object_fd_peek keeps its object, or is -1. */
void survive_segment(const struct common *common, const struct catalog *cat, uint32_t index,
		     uint32_t generation, const struct segment_fact *fact, int object_fd_peek);
/* Forgets a segment that has ended. The keeper has closed its object when keeper_link_forgotten()
 * reaches the returned value; 0: the keeper never had it. */
uint64_t survive_segment_ended(const struct common *common, const struct catalog *cat,
			       uint32_t index, uint32_t generation);

/* A part of a segment on a device. Its tag contains all of these. */
struct survive_part {
	uint64_t instance, size;
	uint32_t index, generation; /* of the segment */
	uint32_t part;
};

/* How often the keeper has been told to forget something; see keeper_link_forget(). */
uint64_t survive_forgets(const struct common *common);

void survive_part_tag(char tag[KEEPER_TAG_SIZE], const struct survive_part *part);
/* Reads the tag of a part. False: it is no such tag. */
bool survive_part_read(const char *tag, struct survive_part *part);
void survive_part(const struct common *common, const struct catalog *cat,
		  const struct survive_part *part, int fd_peek);
void survive_part_ended(const struct common *common, const struct catalog *cat,
			const struct survive_part *part);
/* Keeps the descriptor that keeps the segment's device open. */
void survive_hold(const struct common *common, const struct catalog *cat, uint32_t index,
		  uint32_t generation, int fd_peek);
void survive_hold_ended(const struct common *common, const struct catalog *cat, uint32_t index,
			uint32_t generation);

/* Keeps the page of that ring. If that fails, with a negative errno, the ring must not exist. */
int survive_page(const struct common *common, const struct catalog *cat, uint32_t index,
		 uint32_t generation, int fd_peek);
void survive_page_ended(const struct common *common, const struct catalog *cat, uint32_t index,
			uint32_t generation);

/* The number of chunks of the row. */
uint32_t row_chunk_count(const struct catalog_row *row);
/* A checksum of the members of a row that are constant while it is published. That of a group's
 * member leaves out the version, which may change until the group is published. */
uint32_t sum_of_row(const struct catalog *cat, uint32_t slot);
uint32_t sum_of_member(const struct catalog *cat, uint32_t slot);
/* A checksum of @generation, and of the members of a row that are constant as long as the row is a
 * ring's. */
uint32_t sum_of_ring_row(const struct catalog *cat, uint32_t slot, uint64_t generation);
/* True if the row belongs to a ring. A row that has a version does not need a ring that is over:
 * it belongs to the ring only until the facts say that the ring has ended. */
bool row_is_of_ring(const struct catalog *cat, const struct catalog_row *row);
/* True if the row is one of those among which a ring's producer publishes. */
bool row_is_ring_slot(const struct catalog *cat, const struct catalog_row *row);
/* A checksum of a segment's fact, and of the constant members of its entry, for that generation. */
uint32_t sum_of_segment(const struct segment_fact *fact, const struct catalog_segment *row,
			uint32_t generation);
/* True if there is a fact of @ring, or if there are no facts at all. */
bool ring_fact_is_of(const struct catalog *cat, uint64_t ring);
