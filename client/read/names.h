/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the catalog's description of one leased tensor, or of all tensors whose names have a
 * prefix. */
#pragma once

#include <stddef.h>

#include "client/connection/client.h"
#include "client/read/lookup.h"

/* The meaning of a name in use. */
struct name_entry {
	uint64_t ref;
	struct ring_seen seen;
	uint64_t producer; /* catalog_producer(), or 0 */
	tl_info info;
};

/* Fills *@e with the meaning of the name at @index, without info.publisher. Returns 0, LEASE_E_*,
 * or a negative errno such as -EPROTO. */
int names_entry(struct session *s, uint32_t index, struct name_entry *e);

/* Reads, under a lease on the tensor in @row, who published its name last. */
void names_publisher(const struct session *s, const struct catalog_row *row, tl_identity *who);

/* Called with the @index of a name in @bucket. A result other than 0 ends the walk. */
typedef int names_visit(struct session *s, uint32_t bucket, uint32_t index, void *context);
/* Visits all names in use, and some that are not. Returns the result of @visit, or fails as
 * names_list() does. */
int names_walk(struct session *s, names_visit *visit, void *context);
/* Visits only the names in the bucket of @key, which has that name if it exists. */
int names_walk_like(struct session *s, const struct name_key *key, names_visit *visit,
		    void *context);

/* Visits all tensors whose names start with @prefix. A result of @visit other than 0 ends the list
 * and is returned. Otherwise returns 0, or a negative errno, such as -ENOTCONN if the daemon went
 * away. */
int names_list(struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context);
/* Reads the meaning of the name at @index for a list. 0, > 0 if it means nothing, or a negative
 * errno. */
int names_list_at(struct session *s, uint32_t index, struct name_entry *e);
/*
 * names_list() for the one name that was found at @index, if it is still there and means something.
 */
int names_list_one(struct session *s, uint32_t index, const char *name,
		   int (*visit)(const tl_info *info, void *context), void *context);
/* Looks for a name that starts with the text @prefix, for a wait. Returns 0 if there is one,
 * LEASE_E_NONE (sleep on *@wake), LEASE_E_UNSERVED, or a negative errno. */
int names_wait(struct session *s, const char *prefix, struct wake_word *wake);
