/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the catalog's description of a leased tensor, and of all tensors whose names begin alike.
 */
#pragma once

#include <stddef.h>

#include "client/get/lookup.h"
#include "client/session/client.h"

/* row_info(), with the number that this process gives to the device. */
int tensor_info(const struct session *s, const struct catalog_row *row, tl_info *info);

/* What a name in use means. */
struct name_entry {
	uint64_t ref;
	struct ring_seen seen;
	uint64_t producer; /* catalog_producer(), or 0 */
	tl_info info;
};

/* Fills *@e with what the name at @index means. 0; LEASE_E_*; or -EPROTO and the like. */
int names_entry(struct session *s, uint32_t index, struct name_entry *e);

/* @index: of a name in @bucket. Not 0 ends the walk. */
typedef int names_visit(struct session *s, uint32_t bucket, uint32_t index, void *context);
/* All names in use, and some that are not. What @visit returned, or as names_list(). */
int names_walk(struct session *s, names_visit *visit, void *context);
/* Only those in the bucket of @key, which has that name if it is there. */
int names_walk_like(struct session *s, const struct name_key *key, names_visit *visit,
		    void *context);

int names_list(struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context);
/* The same of the name that was found at @index, if that is still there and means something. */
int names_list_one(struct session *s, uint32_t index, const char *name,
		   int (*visit)(const tl_info *info, void *context), void *context);
/*
 * For somebody who waits: is there a name that starts with @prefix? 0; LEASE_E_NONE: sleep on
 * *@wake; LEASE_E_UNSERVED, or a negative errno.
 */
int names_wait(struct session *s, const char *prefix, struct wake_word *wake);
