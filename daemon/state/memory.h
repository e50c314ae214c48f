/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: the segments there are, by their index in the catalog, whose segment entries are written
 * here only. */
#pragma once

#include "daemon/state/catalog.h"
#include "daemon/store/segment.h"

struct memory {
	struct catalog *catalog;
	struct segment_store store;
	struct segment **segments; /* by index */
	uint64_t room_made;	   /* counts what may let a waiting create succeed */
	uint64_t warm_ns;	   /* how long segments are kept warm */
};

/* @memory->store and warm_ns are set. -ENOMEM. */
int memory_init(struct memory *memory, struct catalog *catalog);
/* Destroys the objects of all segments and frees these. */
void memory_deinit(struct memory *memory);

/* Gives the segment its index and generation. STATE_E_TENSORS, -ENOSPC. */
int memory_add(struct memory *memory, struct segment *seg);
/* Its object, or all of its parts, are there: the catalog says so. */
void memory_live(struct memory *memory, struct segment *seg);
/* The catalog says that mappings of it are worth nothing any more; then it is doomed. */
void memory_end(struct memory *memory, struct segment *seg);
/* To be called when its object has been destroyed, and nobody has it open. */
void memory_free(struct memory *memory, struct segment *seg);

/* NULL: there is none of that generation. */
struct segment *memory_find(const struct memory *memory, uint32_t index, uint32_t generation);

/* Dooms one segment that has been warm for too long. Returns when to call next (monotonic ns; @now
 * if one was doomed), or 0 if nothing is warm. */
uint64_t memory_trim(struct memory *memory, uint64_t now);
