/* SPDX-License-Identifier: Apache-2.0 */
/* What the inspector looks at: copies of a daemon's catalog and facts, and counts in them. */
#pragma once

#include "daemon/recover/check.h"

/* A copy for a reader beside a daemon that may be writing. Only copies are read, since a mapping
 * could be truncated under the reader. */
struct snapshot {
	struct catalog catalog; /* to be read only; facts is NULL if there are none */
	uint64_t size, facts_size;
};

/* @facts_fd is -1 if there are no facts; then unused entries cannot be told from others. Returns
 * CATALOG_E_STRANGE with *why if it is no catalog, or -ENOMEM. */
int snapshot_take(struct snapshot *s, int catalog_fd, int facts_fd, const char **why);
void snapshot_free(struct snapshot *s);

/* Checks the invariants that hold only while the daemon is idle. To be called after
 * check_init_all(). */
void at_rest_check(struct check *check);
