/* SPDX-License-Identifier: Apache-2.0 */
/* Ends tensors early: at their time, with their owner, or for space. Tensors are unnamed as by
 * DELETE. Loop thread only. */
#include "daemon/state/expire.h"
#include "daemon/state/handover.h"
#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/stream.h"
#include "util/clock.h"

enum { EXPIRE_BATCH = 64 };

/* Unnames the tensor, in the steps of its publisher's account. Without memory for that account the
 * tensor stays, and is tried again later. */
static void unname(struct state *st, uint32_t slot)
{
	struct account *a = account_ref(&st->accounts, catalog_row(&st->catalog, slot)->uid);

	if (a)
		tensor_unname(st, a, slot);
	account_unref(a);
}

bool expire_bound(struct state *st, struct client *c, unsigned *budget)
{
	const struct lifetime *life;

	for (; *budget && !list_empty(&c->bound); --*budget) {
		life = list_first_entry(&c->bound, struct lifetime, bound);
		tensor_unname(st, c->account, (uint32_t)(life - st->lifetimes.of));
	}
	return list_empty(&c->bound);
}

void expire_step(struct state *st, int64_t now)
{
	struct lifetimes *l = &st->lifetimes;
	unsigned n = 0;

	for (; n < EXPIRE_BATCH && l->expiring.top && (int64_t)l->expiring.top->key <= now; n++)
		unname(st,
		       (uint32_t)(container_of(l->expiring.top, struct lifetime, expiry) - l->of));
	streams_expire(st, now);
	handovers_expire(st, now);
	if (l->look_again <= now) {
		l->look_again = DEADLINE_NEVER;
		st->common->space_freed++; /* a tensor that was held may be evictable now */
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

bool expire_segment(struct state *st, struct segment *seg, unsigned budget)
{
	for (; budget && seg->spoiled < st->catalog.rows.high; budget--, seg->spoiled++) {
		if (st->tensors[seg->spoiled].segment == seg && is_published(st, seg->spoiled))
			unname(st, seg->spoiled);
	}
	return seg->spoiled >= st->catalog.rows.high;
}

/*
 * Eviction; see expire.h. A get sends us nothing: it writes the time into its client's ledger. So
 * the key of a tensor in evictables.idle is a lower bound of its last use.
 *
 * We look at the tensor at the top. If the ledgers have a later time, the tensor is put back with
 * that time. If somebody holds it, it is set aside as busy. Otherwise it is the least recently used
 * idle tensor. Busy tensors are looked at again in turn. Loop thread only.
 */

enum {
	LOOKS = 32,	  /* tensors that one call looks at; lease_look() bounds each look */
	SHARERS_MAX = 32, /* tensors of one extent that are looked at */
};

#define PAUSE_MIN_NS (10 * NS_PER_MS)
#define PAUSE_MAX_NS NS_PER_SEC

static uint32_t slot_of(const struct state *st, const struct lifetime *life)
{
	return (uint32_t)(life - st->lifetimes.of);
}

/* True if all tensors in the extent of @slot are evictable. Otherwise giving one up frees no
 * space. */
static bool extent_is_evictable(const struct state *st, uint32_t slot)
{
	uint32_t other = st->tensors[slot].sibling;

	for (unsigned n = 0; other != slot && n < SHARERS_MAX; n++) {
		const struct catalog_row *row = catalog_row(&st->catalog, other);

		if (row_word_state(row->word) == ROW_LIVE && !(row->flags & ROW_EVICTABLE))
			return false;
		other = st->tensors[other].sibling;
	}
	return true;
}

/* Stores the tensor's last use in *@use. False: the tensor cannot be given up now. */
static bool look(struct state *st, struct lifetime *life, uint64_t *use)
{
	uint64_t now = ledger_clock((uint64_t)now_mono_coarse_ns()), got;
	uint32_t slot = slot_of(st, life);

	life->looked = st->lifetimes.looks;
	if (lease_look(st, slot, now, &got) || !extent_is_evictable(st, slot))
		return false;
	*use = got ? use_of_get(got) : 0;
	return true;
}

static void set_aside(struct lifetime *life)
{
	life->seen = use_of_get(ledger_clock((uint64_t)now_mono_coarse_ns()));
	heap_remove(&life->set->idle, &life->idle);
	list_del(&life->busy);
	list_add_tail(&life->set->busy, &life->busy);
}

/* Looks at a busy tensor again. If it is free now, it was in use at least until the last look. */
static void look_at_busy(struct state *st, struct lifetime *life)
{
	uint64_t use;

	if (!look(st, life, &use)) {
		set_aside(life);
		return;
	}
	list_del(&life->busy);
	heap_add(&life->set->idle, &life->idle, use > life->seen ? use : life->seen);
}

/* Looks at the idle tensor at the top. True: it was given up. */
static bool try_idle(struct state *st, struct lifetime *life)
{
	uint64_t key = life->idle.key, use = 0, bytes;
	bool idle = look(st, life, &use);

	if (idle && use > key) {
		heap_remove(&life->set->idle, &life->idle);
		heap_add(&life->set->idle, &life->idle, use);
		return false;
	}
	bytes = catalog_row(&st->catalog, slot_of(st, life))->nbytes;
	if (idle && tensor_unname_unheld(st, slot_of(st, life))) {
		st->meters.evicted++;
		st->meters.evicted_bytes += bytes;
		return true;
	}
	set_aside(life);
	return false;
}

/* The first busy tensor that has not been looked at since evict_one() number @since, or NULL. */
static struct lifetime *next_busy(const struct evictables *set, uint64_t since)
{
	struct lifetime *life;

	if (list_empty(&set->busy))
		return NULL;
	life = list_first_entry(&set->busy, struct lifetime, busy);
	return life->looked > since ? NULL : life;
}

/* True if all idle tensors of the set were used too recently. Their keys are lower bounds. */
static bool idle_stay(const struct evictables *set, const struct eviction *e)
{
	return e->before && set->idle.top->key >= e->before;
}

/* Gives up one tensor of the set. Half of the looks may go to busy tensors first, since one of them
 * may be the least recently used. */
static bool evict_from(struct state *st, struct evictables *set, const struct eviction *e,
		       unsigned *budget)
{
	unsigned again = *budget / 2;
	struct lifetime *busy;

	while (*budget) {
		busy = next_busy(set, e->since);
		if (busy && (again || !set->idle.top)) {
			look_at_busy(st, busy);
			again -= again > 0;
		} else if (!set->idle.top || idle_stay(set, e)) {
			return false;
		} else if (try_idle(st, container_of(set->idle.top, struct lifetime, idle))) {
			return true;
		}
		--*budget;
	}
	return false;
}

/* Moves the set whose top has the oldest known use to the front. */
static void oldest_first(struct state *st)
{
	struct evictables *set, *oldest = NULL;

	list_for_each_entry(set, &st->lifetimes.sets, link) {
		if (set->idle.top && (!oldest || set->idle.top->key < oldest->idle.top->key))
			oldest = set;
	}
	if (oldest) {
		list_del(&oldest->link);
		list_add_head(&st->lifetimes.sets, &oldest->link);
	}
}

/* Evicts one tensor from other users' sets on the same memory, which take turns. */
static bool evict_others(struct state *st, const struct client *c, const struct device *device,
			 const struct eviction *e, unsigned *budget)
{
	struct evictables *set, *after;
	struct list done;
	bool evicted = false;

	list_init(&done);
	oldest_first(st);
	list_for_each_entry_safe(set, after, &st->lifetimes.sets, link) {
		if (evicted || !*budget)
			break;
		if (set->uid == c->uid || set->device != device)
			continue;
		list_del(&set->link);
		list_add_tail(&done, &set->link);
		evicted = evict_from(st, set, e, budget); /* may free @set */
	}
	list_move_all(&st->lifetimes.sets, &done);
	return evicted;
}

static uint64_t candidates(const struct state *st, const struct client *c,
			   const struct device *device, bool own)
{
	const struct evictables *set;
	uint64_t n = 0;

	list_for_each_entry(set, &st->lifetimes.sets, link) {
		if (set->device == device && (set->uid == c->uid || !own))
			n += set->count;
	}
	return n;
}

static int64_t pause_of(const struct state *st)
{
	return st->lifetimes.pause_ns ? st->lifetimes.pause_ns : PAUSE_MIN_NS;
}

enum evicted evict_one(struct state *st, const struct client *c, const struct device *device,
		       bool own, struct eviction *eviction)
{
	bool goes_on = eviction->left && (own || !eviction->only_own), evicted = false;
	unsigned budget = LOOKS;
	struct evictables *set;

	if (list_empty(&st->lifetimes.sets))
		return EVICTED_NONE;
	if (!goes_on && now_mono_ns() < eviction->rest)
		return EVICTED_NONE;
	if (!goes_on) { /* + 1: one look may find that a tensor was used later than was known */
		eviction->left = candidates(st, c, device, own) + 1;
		eviction->since = st->lifetimes.looks;
		eviction->only_own = own;
	}
	st->lifetimes.looks++;
	set = lifetime_evictables(st, c->uid, device);
	if (set)
		evicted = evict_from(st, set, eviction, &budget);
	if (!evicted && !own)
		evicted = evict_others(st, c, device, eviction, &budget);
	if (evicted) {
		eviction->left = 0;
		st->lifetimes.pause_ns = 0;
		return EVICTED_ONE;
	}
	if (budget || eviction->left <= LOOKS) { /* all were looked at, now or in earlier calls */
		if (goes_on)
			eviction->rest = now_mono_ns() + pause_of(st);
		eviction->left = 0;
		return EVICTED_NONE;
	}
	eviction->left -= LOOKS;
	return EVICTED_LATER;
}

/* Uses the heap of deadlines, so that older deadlines, also of other namespaces, come first. */
void evict_continue(struct state *st)
{
	int64_t now = now_mono_ns();

	if (st->lifetimes.look_again > now)
		st->lifetimes.look_again = now;
	lifetime_schedule(st);
}

bool evict_may(const struct state *st, const struct client *c, bool own)
{
	return candidates(st, c, NULL, own) > 0;
}

void evict_wait(struct state *st, const struct client *c)
{
	struct lifetimes *l = &st->lifetimes;

	if (l->look_again != DEADLINE_NEVER || !evict_may(st, c, false))
		return;
	l->pause_ns = l->pause_ns ? l->pause_ns * 2 : PAUSE_MIN_NS;
	if (l->pause_ns > PAUSE_MAX_NS)
		l->pause_ns = PAUSE_MAX_NS;
	l->look_again = now_mono_ns() + l->pause_ns;
	lifetime_schedule(st);
}
