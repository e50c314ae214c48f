/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of tensors lie; see extent.h. Loop thread only. */
#include "daemon/state/extent.h"
#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/export.h"
#include "daemon/state/ring.h"
#include "proto/wire.h"
#include "util/clock.h"

/* The index of the list (class) for a segment that may have @units free units in a row. */
static unsigned class_of(uint32_t units)
{
	unsigned bits = units ? 32 - (unsigned)__builtin_clz(units) : 0;

	return bits < SMALL_EMPTY ? bits : SMALL_EMPTY - 1;
}

void small_add(struct client *c, struct segment *seg)
{
	list_add_tail(&c->small[class_of(seg->max_run)], &seg->writer_link);
}

/* Moves the segment from the list of @class to the one where it belongs now. */
static void sort(struct client *c, struct segment *seg, unsigned class, bool empty)
{
	unsigned now = empty ? SMALL_EMPTY : class_of(seg->max_run);

	if (now == class)
		return;
	list_del(&seg->writer_link);
	list_add_tail(&c->small[now], &seg->writer_link);
}

struct segment *small_take(struct client *c, uint64_t nbytes, unsigned budget, uint64_t *offset)
{
	unsigned class = class_of((uint32_t)((nbytes + SEGMENT_UNIT - 1) / SEGMENT_UNIT)), left;
	struct segment *seg, *after;
	bool taken;

	for (; class <= SMALL_EMPTY; class ++) {
		left = budget;
		list_for_each_entry_safe(seg, after, &c->small[class], writer_link) {
			if (!left--)
				break;
			if (seg->state != SEGMENT_LIVE)
				continue;
			taken = !segment_extent_take(seg, nbytes, offset);
			sort(c, seg, class, !taken && !seg->extents);
			if (taken)
				return seg;
		}
	}
	return NULL;
}

void small_give(struct client *writer, struct segment *seg, uint64_t offset, uint64_t nbytes)
{
	unsigned class = class_of(seg->max_run);

	segment_extent_give(seg, offset, nbytes);
	if (writer)
		sort(writer, seg, class, !seg->extents);
}

void extent_join(struct state *st, uint32_t slot, uint32_t with)
{
	struct tensor *t = &st->tensors[slot], *w = &st->tensors[with];

	t->sibling = w->sibling;
	t->sibling_prev = with;
	st->tensors[w->sibling].sibling_prev = slot;
	w->sibling = slot;
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
	uint32_t other = t->sibling;

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

	st->tensors[t->sibling_prev].sibling = t->sibling;
	st->tensors[t->sibling].sibling_prev = t->sibling_prev;
	t->sibling = t->sibling_prev = slot;
}
