/* SPDX-License-Identifier: Apache-2.0 */
/* A heap of deadlines, which always tells the earliest. */
#pragma once

#include <stdint.h>

struct deadline {
	int64_t at;
	unsigned index; /* in the heap, from 1 on; 0: it is not there */
};

struct deadlines {
	struct deadline **heap; /* from 1 on */
	unsigned count;
};

/* @max: there are never more deadlines. -ENOMEM. */
int deadlines_init(struct deadlines *all, unsigned max);
void deadlines_deinit(struct deadlines *all);

/* Sets the deadline to @at. DEADLINE_NEVER takes it out of the heap. */
void deadline_set(struct deadlines *all, struct deadline *d, int64_t at);
/* Does nothing if it is not there. */
void deadline_unset(struct deadlines *all, struct deadline *d);
/* NULL: there is none. */
struct deadline *deadline_first(const struct deadlines *all);
