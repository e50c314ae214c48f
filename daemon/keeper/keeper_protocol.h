/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors by tag. */
#pragma once

#include "daemon/keeper/tag.h"

struct kept {
	char tag[KEEP_TAG_SIZE];
	int fd;
};

struct kept_table {
	void *tree; /* of struct kept, by tag; tsearch(3) */
	unsigned count;
};

/* Takes @fd_take, also on failure, and closes an earlier descriptor of that tag. -ENOMEM. */
int kept_add(struct kept_table *table, const char *tag, int fd_take);
/* Hands the descriptor over. Returns -1 if there is none. */
int kept_take(struct kept_table *table, const char *tag);
/* Calls @each for all of them, by tag. */
void kept_each(const struct kept_table *table, void (*each)(const struct kept *kept, void *context),
	       void *context);
/* Any of them, or NULL if there are none. */
const struct kept *kept_any(const struct kept_table *table);
/* Closes all. */
void kept_deinit(struct kept_table *table);
