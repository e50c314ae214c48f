/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lifetimes; see lifetime.h. Invariants: (1) the nodes of a row's lifetime are in their heap and
 * list exactly while the row is LIVE; (2) an evictable tensor without bytes is in no set, since
 * giving it up makes no space. Loop thread only.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/state/lifetime.h"
#include "util/clock.h"
#include "util/fault.h"

/* If a client used more pages of its ledger than this, only this many are read. */
enum { REMEMBER_PAGES = 64 };
enum { REMEMBER_SLOTS = 16 }; /* slots noted at a time; divides LEDGER_PAGE_SLOTS */

static const struct device *device_of(const struct segment *seg)
{
	return seg->device ? seg->device->device : NULL;
}

/* True if giving up the tensor frees space. */
static bool frees_space(const struct state *st, uint32_t slot)
{
	return catalog_row(&st->catalog, slot)->flags & ROW_EVICTABLE && st->tensors[slot].segment;
}

struct evictables *lifetime_evictables(const struct state *st, uint32_t uid,
				       const struct device *device)
{
	struct evictables *set;

	list_for_each_entry(set, &st->lifetimes.sets, link) {
		if (set->uid == uid && set->device == device)
			return set;
	}
	return NULL;
}

int lifetime_prepare(struct state *st, const struct client *c, const struct segment *seg)
{
	struct evictables *set;

	if (!seg || lifetime_evictables(st, c->uid, device_of(seg)))
		return 0;
	set = fault("evictables") ? NULL : calloc(1, sizeof(*set));
	if (!set)
		return -ENOMEM;
	*set = (struct evictables){ .uid = c->uid, .device = device_of(seg) };
	list_init(&set->busy);
	list_add_tail(&st->lifetimes.sets, &set->link);
	return 0;
}

static void set_free_if_empty(struct evictables *set)
{
	if (set->count)
		return;
	list_del(&set->link);
	free(set);
}

void lifetime_tidy(struct state *st)
{
	struct evictables *set, *after;

	list_for_each_entry_safe(set, after, &st->lifetimes.sets, link)
		set_free_if_empty(set);
}

int lifetime_reserve(struct state *st, const struct client *c, const struct segment *seg,
		     struct evictables **set)
{
	int r = lifetime_prepare(st, c, seg);

	if (r || !seg)
		return r;
	*set = lifetime_evictables(st, c->uid, device_of(seg));
	(*set)->count++;
	return 0;
}

void lifetime_unreserve(struct evictables *set)
{
	if (!set)
		return;
	set->count--;
	set_free_if_empty(set);
}

/* Sets when the tensor expires. @when 0: never. */
static void expires(struct state *st, struct lifetime *life, uint64_t when)
{
	heap_remove(&st->lifetimes.expiring, &life->expiry);
	if (when)
		heap_add(&st->lifetimes.expiring, &life->expiry, when);
	lifetime_schedule(st);
}

static bool has_lifetime(const struct catalog_row *row)
{
	return row->flags & (ROW_OWNER_BOUND | ROW_EVICTABLE) ||
	       (!(row->flags & ROW_RING) && row->expires_ns);
}

/* Begins the lifetime of a LIVE row. @used_ns: when it was last used, as far as is known. */
static void begin(struct state *st, struct client *c, uint32_t slot, uint64_t used_ns)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct lifetime *life = &st->lifetimes.of[slot];

	if (!has_lifetime(row))
		return; /* most rows have no lifetime, and leave their entry's page unused */
	*life = (struct lifetime){ 0 };
	list_init(&life->bound);
	list_init(&life->busy);
	if (row->expires_ns)
		expires(st, life, row->expires_ns);
	if (row->flags & ROW_OWNER_BOUND)
		list_add_tail(&c->bound, &life->bound);
	if (!frees_space(st, slot))
		return;
	life->set = lifetime_evictables(st, c->uid, device_of(st->tensors[slot].segment));
	life->set->count++;
	heap_add(&life->set->idle, &life->idle, use_of_commit(ledger_clock(used_ns)));
}

void lifetime_begin(struct state *st, struct client *c, uint32_t slot)
{
	begin(st, c, slot, (uint64_t)now_mono_coarse_ns());
}

void lifetime_go_on(struct state *st, struct client *c, uint32_t slot)
{
	uint64_t committed = catalog_row(&st->catalog, slot)->committed_ns;
	uint64_t real = (uint64_t)now_real_ns(), mono = (uint64_t)now_mono_ns();
	uint64_t age = real > committed ? real - committed : 0;

	begin(st, c, slot, age < mono ? mono - age : 0);
}

static void set_leave(struct lifetime *life)
{
	if (!life->set)
		return;
	heap_remove(&life->set->idle, &life->idle);
	list_del(&life->busy);
	life->set->count--;
	set_free_if_empty(life->set);
	life->set = NULL;
}

void lifetime_end(struct state *st, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct lifetime *life = &st->lifetimes.of[slot];

	if (!has_lifetime(row))
		return;
	if (row->expires_ns)
		expires(st, life, 0);
	list_del(&life->bound);
	set_leave(life);
}

void lifetime_end_soon(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct lifetime *life = &st->lifetimes.of[slot];

	if (!has_lifetime(row)) {
		*life = (struct lifetime){ 0 };
		list_init(&life->bound);
		list_init(&life->busy);
	}
	row->expires_ns = (uint64_t)now_mono_ns();
	expires(st, life, row->expires_ns);
}

void lifetime_lost(struct state *st, uint32_t slot)
{
	if (catalog_row(&st->catalog, slot)->flags & ROW_EVICTABLE)
		set_leave(&st->lifetimes.of[slot]);
}

static void remember(struct state *st, const struct client *c, uint32_t slot, uint64_t now)
{
	struct lifetime *life = &st->lifetimes.of[slot];
	uint64_t use = use_of_get(client_last_use(c, slot, now));

	if (row_word_state(catalog_row(&st->catalog, slot)->word) != ROW_LIVE ||
	    !frees_space(st, slot))
		return;
	if (use > life->seen)
		life->seen = use;
	if (heap_has(&life->idle) && use > life->idle.key) {
		heap_remove(&life->set->idle, &life->idle);
		heap_add(&life->set->idle, &life->idle, use);
	}
}

/* Notes the next slots of one page of the ledger, or skips a page that notes no uses. */
static void remember_some(struct state *st, struct client *c, uint64_t now)
{
	uint32_t slot = c->end.slot, page_end = (slot / LEDGER_PAGE_SLOTS + 1) * LEDGER_PAGE_SLOTS;

	if (!client_has_uses(c, slot)) {
		c->end.slot = page_end;
		return;
	}
	for (; slot < st->catalog.rows.high && slot < c->end.slot + REMEMBER_SLOTS; slot++) {
		if (client_last_use(c, slot, now))
			remember(st, c, slot, now);
	}
	c->end.slot = slot;
	c->end.pages += slot == page_end;
}

bool lifetime_remember(struct state *st, struct client *c, unsigned *budget)
{
	uint64_t now = ledger_clock((uint64_t)now_mono_coarse_ns());

	if (!c->ledger || list_empty(&st->lifetimes.sets))
		return true;
	while (c->end.slot < st->catalog.rows.high && c->end.pages < REMEMBER_PAGES) {
		if (*budget < REMEMBER_SLOTS)
			return false;
		*budget -= REMEMBER_SLOTS;
		remember_some(st, c, now);
	}
	return true;
}

int64_t lifetime_due(const struct state *st)
{
	const struct lifetimes *l = &st->lifetimes;
	int64_t due = l->look_again;

	if (l->expiring.top && (int64_t)l->expiring.top->key < due)
		due = (int64_t)l->expiring.top->key;
	if (l->streams.top && (int64_t)l->streams.top->key < due)
		due = (int64_t)l->streams.top->key;
	if (l->handovers.top && (int64_t)l->handovers.top->key < due)
		due = (int64_t)l->handovers.top->key;
	return due;
}

void lifetime_schedule(struct state *st)
{
	struct heap *all = &st->common->expiring;
	struct heap_node *next = &st->lifetimes.next;
	int64_t due = lifetime_due(st);

	if (heap_has(next) ? (int64_t)next->key == due : due == DEADLINE_NEVER)
		return;
	heap_remove(all, next);
	if (due != DEADLINE_NEVER)
		heap_add(all, next, (uint64_t)due);
}
