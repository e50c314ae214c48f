/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap: no deadline is later than those below it. Loop thread only. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/serve/deadline.h"
#include "util/clock.h"

int deadlines_init(struct deadlines *all, unsigned max)
{
	*all = (struct deadlines){ .heap = calloc((size_t)max + 1, sizeof(struct deadline *)) };
	return all->heap ? 0 : -ENOMEM;
}

void deadlines_deinit(struct deadlines *all)
{
	free(all->heap);
	all->heap = NULL;
}

static void put(struct deadlines *all, unsigned index, struct deadline *d)
{
	all->heap[index] = d;
	d->index = index;
}

static void rise(struct deadlines *all, struct deadline *d, unsigned index)
{
	for (; index > 1 && all->heap[index / 2]->at > d->at; index /= 2)
		put(all, index, all->heap[index / 2]);
	put(all, index, d);
}

static void sink(struct deadlines *all, struct deadline *d, unsigned index)
{
	unsigned below;

	for (; (below = 2 * index) <= all->count; index = below) {
		if (below < all->count && all->heap[below + 1]->at < all->heap[below]->at)
			below++;
		if (all->heap[below]->at >= d->at)
			break;
		put(all, index, all->heap[below]);
	}
	put(all, index, d);
}

void deadline_unset(struct deadlines *all, struct deadline *d)
{
	struct deadline *last;
	unsigned index = d->index;

	if (!index)
		return;
	d->index = 0;
	last = all->heap[all->count--];
	if (last == d)
		return;
	sink(all, last, index);
	rise(all, last, last->index);
}

void deadline_set(struct deadlines *all, struct deadline *d, int64_t at)
{
	deadline_unset(all, d);
	d->at = at;
	if (at != DEADLINE_NEVER)
		rise(all, d, ++all->count);
}

struct deadline *deadline_first(const struct deadlines *all)
{
	return all->count ? all->heap[1] : NULL;
}
