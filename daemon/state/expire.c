/* SPDX-License-Identifier: Apache-2.0 */
/* The end of lifetimes; see expire.h. Tensors are unnamed as by DELETE. Loop thread only. */
#include "daemon/state/expire.h"
#include "daemon/state/publish.h"
#include "util/clock.h"

enum { EXPIRE_BATCH = 64 };

/* Charges the steps to its publisher's account. Without memory for that account it is tried again
 * later. */
static void unname(struct state *st, uint32_t slot)
{
	struct account *a = account_ref(&st->accounts, catalog_row(&st->catalog, slot)->uid);

	if (a)
		tensor_unname(st, a, slot);
	account_unref(a);
}

bool expire_bound(struct state *st, struct client *c, unsigned *looks)
{
	const struct life *life;

	for (; *looks && !list_empty(&c->bound); --*looks) {
		life = list_first_entry(&c->bound, struct life, bound);
		tensor_unname(st, c->account, (uint32_t)(life - st->lifetimes.of));
	}
	return list_empty(&c->bound);
}

void expire_step(struct state *st, int64_t now)
{
	struct lifetimes *l = &st->lifetimes;
	unsigned n = 0;

	for (; n < EXPIRE_BATCH && l->expiring.top && (int64_t)l->expiring.top->key <= now; n++)
		unname(st, (uint32_t)(container_of(l->expiring.top, struct life, expiry) - l->of));
	if (l->look_again <= now) {
		l->look_again = DEADLINE_NEVER;
		st->shared->space_freed++; /* a tensor that was held may be evictable now */
		lifetime_schedule(st);
	}
}

static bool is_published(struct state *st, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t word = row->word;

	return (word & 3) == ROW_LIVE && row->name != CATALOG_NONE &&
	       name_meaning(st, row->name) == ref_make(word >> 2, slot);
}

bool expire_segment(struct state *st, struct segment *seg, unsigned looks)
{
	for (; looks && seg->spoiled < st->catalog.rows.high; looks--, seg->spoiled++) {
		if (st->tensors[seg->spoiled].segment == seg && is_published(st, seg->spoiled))
			unname(st, seg->spoiled);
	}
	return seg->spoiled >= st->catalog.rows.high;
}
