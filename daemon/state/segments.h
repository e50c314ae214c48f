/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: all segments, by their index in the catalog. Segment entries are written here only. */
#pragma once

#include "daemon/state/catalog.h"
#include "daemon/state/common.h"

struct segments {
	struct common *common;
	struct catalog *catalog;
	struct segment **segments; /* by index */
	struct list graves;	   /* of struct holding: their segments have ended */
	struct list burying;	   /* in common.graves while there are any */
	struct segment_totals totals;
	struct list changed; /* in common.changed */
};

/* @accounts, @storage and @capacity are the namespace's. -ENOMEM. */
int segments_init(struct segments *segments, struct common *common, struct accounts *accounts,
		  struct catalog *catalog, const struct storage *storage, uint64_t capacity);
/* Destroys the objects of all segments and frees the segments. */
void segments_deinit(struct segments *segments);

/* Gives the segment its index and generation, and charges it to @account. Returns -ENOSPC, or an
 * outcome of account_take(). */
int segments_add(struct segments *segments, struct segment *seg, struct account *account);
/* Takes over a segment that a former daemon left at @index. Fails as account_adopt() does. */
int segments_adopt(struct segments *segments, struct segment *seg, struct account *account,
		   uint32_t index);
/* Shows the segment in the catalog. To be called when its object exists, or all parts have come. */
void segments_live(struct segment *seg);
/* Ends the segment: clears its word, which tells clients that their mappings are
 * worthless. */
void segments_end(struct segment *seg);
/* Frees the segment. To be called when its object has been destroyed, and nobody has it open. */
void segments_free(struct segment *seg);

/* Frees discarded segments that nobody has open any more. False: there may be more of them. */
bool segments_run_due(struct common *common);

/* The segment at @index, or NULL if there is none of that generation. */
struct segment *segments_find(const struct segments *segments, uint32_t index, uint32_t generation);

/* Ends one segment that has been warm for too long. Returns when to call next (monotonic ns; @now
 * if one was ended), or 0 if nothing is warm. */
uint64_t segments_trim(struct common *common, uint64_t now);

/* To be called when numbers of the namespace change that clients read in the catalog's header. */
void segments_changed(struct segments *segments);
/* Refreshes the numbers of all namespaces in which something changed. */
void segments_publish_numbers(struct common *common);
