/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/state/extent.h"
#include "daemon/state/notice.h"

void extent_join(struct state *st, uint32_t slot, uint32_t with)
{
	struct tensor *t = &st->tensors[slot], *w = &st->tensors[with];

	t->share = w->share;
	t->share_prev = with;
	st->tensors[w->share].share_prev = slot;
	w->share = slot;
}

void extent_share(struct state *st, uint32_t slot, uint32_t with)
{
	struct tensor *t = &st->tensors[slot];
	const struct tensor *w = &st->tensors[with];

	t->segment = w->segment;
	t->first_unit = w->first_unit;
	t->units = w->units;
	extent_join(st, slot, with);
}

bool extent_unlink(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	uint32_t other = t->share;

	if (!t->linked || other == slot)
		return false;
	extent_unjoin(st, slot);
	if (t->freed->slot == slot)
		t->freed->slot = other;
	t->freed = NULL;
	return true;
}

void extent_unjoin(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	st->tensors[t->share_prev].share = t->share;
	st->tensors[t->share].share_prev = t->share_prev;
	t->share = t->share_prev = slot;
}
