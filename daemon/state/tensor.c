/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor from CREATE to FREE: its row, its bytes and what they are charged to.
 *
 * A slot is FREE; then DRAFT, in the circular list of its client's drafts; then LIVE, pinned to its
 * name; then RETIRED; then FREE again with the next generation. From DRAFT to FREE it has its
 * extent in a segment. Invariants: (1) create sets aside everything that commit needs, so that a
 * well-formed commit does not fail for want of space; (2) every early return gives back its
 * reservations. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/export.h"
#include "daemon/state/ring.h"
#include "daemon/state/tensor.h"
#include "proto/wire.h"
#include "util/clock.h"

enum { OTHERS_BUDGET = 16 }; /* the most clients of other users that a search for space looks at */

/* ---- slots ---------------------------------------------------------------------------------- */

static struct pool *pool_of(struct state *st, enum share share)
{
	return &st->catalog.pools[share];
}

/* Gives back what a slot is charged. @draft: the row still has the charge of a draft. */
static void slot_discharge(struct state *st, struct account *account, uint32_t chunks, bool draft)
{
	account_give(account, pool_of(st, SHARE_CHUNKS), chunks);
	if (draft)
		account_give(account, pool_of(st, SHARE_DRAFTS), 1);
	account_give(account, pool_of(st, SHARE_TENSORS), 1);
}

static int slot_charge(struct state *st, struct account *account, uint32_t chunks)
{
	int r = account_take(account, pool_of(st, SHARE_TENSORS), 1);

	if (r)
		return r;
	r = account_take(account, pool_of(st, SHARE_DRAFTS), 1);
	if (!r) {
		r = account_take(account, pool_of(st, SHARE_CHUNKS), chunks);
		if (!r)
			return 0;
		account_give(account, pool_of(st, SHARE_DRAFTS), 1);
	}
	account_give(account, pool_of(st, SHARE_TENSORS), 1);
	return r;
}

static int slot_reserve(struct state *st, uint32_t chunks)
{
	/* each draft without a name may need one */
	int r = name_prepare(&st->names, st->catalog.header->drafts - st->named + 1);

	return r ? r : name_chunks_reserve(&st->names, chunks);
}

static int slot_take(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot)
{
	struct tensor *t;
	uint32_t chunks;
	int r;

	chunks = catalog_chunks_for(rq->extra) + catalog_chunks_for(TENSOR_NAME_MAX);
	r = slot_charge(st, c->account, chunks);
	if (r)
		return r;
	r = slot_reserve(st, chunks);
	if (!r) {
		r = catalog_take(&st->catalog, &st->catalog.rows, slot);
		if (r)
			catalog_chunks_unreserve(&st->catalog, chunks);
	}
	if (r) {
		slot_discharge(st, c->account, chunks, true);
		return r < 0 ? r : STATE_E_TENSORS;
	}
	if (atomic_load(&st->catalog.header->slots_high) < st->catalog.rows.high)
		atomic_store(&st->catalog.header->slots_high, st->catalog.rows.high);
	t = &st->tensors[*slot];
	*t = (struct tensor){
		.account = c->account, .sibling = *slot, .sibling_prev = *slot, .owner = c->index
	};
	t->chunks_reserved = (uint16_t)chunks;
	atomic_fetch_add(&st->catalog.header->drafts, 1);
	c->drafts++;
	return 0;
}

/* After its last generation a slot stays taken: with another one, old refs would be valid again. */
static void row_give(struct state *st, uint32_t slot)
{
	if (catalog_row(&st->catalog, slot)->word >> 2 < ROW_GENERATION_MAX)
		catalog_give(&st->catalog.rows, slot);
}

static void slot_give(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	catalog_chunks_unreserve(&st->catalog, t->chunks_reserved);
	slot_discharge(st, t->account, t->chunks_reserved, true);
	*t = (struct tensor){ .sibling = slot, .sibling_prev = slot };
	row_give(st, slot);
	atomic_fetch_sub(&st->catalog.header->drafts, 1);
	if (c)
		c->drafts--;
}

/* ---- space ----------------------------------------------------------------------------------- */

static uint64_t prefetched_size(const struct tensor *t)
{
	return t->segment && !segment_is_small(t->segment) ? t->segment->size : 0;
}

/* Allows the draft to be taken back. */
void prefetched_add(struct state *st, struct client *c, struct tensor *t)
{
	st->prefetched++;
	st->prefetched_bytes += prefetched_size(t);
	list_add_tail(&c->prefetched, &t->link);
	if (list_empty(&c->prefetching))
		list_add_tail(&st->prefetching, &c->prefetching);
}

/* Keeps the draft from being taken back. */
static void prefetched_remove(struct state *st, struct client *c, struct tensor *t)
{
	t->prefetch = false;
	st->prefetched--;
	st->prefetched_bytes -= prefetched_size(t);
	list_del(&t->link);
	if (list_empty(&c->prefetched))
		list_del(&c->prefetching);
}

/*
 * Takes a prefetched draft back if it is unused. False: its client uses it. To use it, the client
 * counts a hold, then looks whether the row is still a draft. It gives up the hold when its COMMIT
 * is answered.
 *
 * ORDER: the store and the read here are T1 and T2 of lease.c.
 */
bool prefetch_try_back(struct state *st, struct client *c, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t word = atomic_load(&row->word);

	atomic_store(&row->word, word | ROW_RETIRED);
	if (!client_leases_on(c, slot)) {
		draft_give_up(st, c, slot); /* its word does not return to DRAFT */
		return true;
	}
	atomic_store(&row->word, word);
	prefetched_remove(st, c, &st->tensors[slot]); /* it is an ordinary draft now */
	return false;
}

static bool prefetch_take_back(struct state *st, struct client *c)
{
	while (!list_empty(&c->prefetched))
		if (prefetch_try_back(
			    st, c,
			    (uint32_t)(list_first_entry(&c->prefetched, struct tensor, link) -
				       st->tensors)))
			return true;
	return false;
}

/* Takes back the empty segment for small tensors that a writer may keep. */
static bool spare_take_back(struct client *c)
{
	struct list *empty = &c->small[SMALL_EMPTY];

	if (list_empty(empty))
		return false;
	segments_end(list_first_entry(empty, struct segment, writer_link));
	return true;
}

static bool is_full(const struct pool *pool, uint64_t size)
{
	return size > pool_left(pool);
}

/* Takes back unused memory of @account's clients. */
static bool own_free_space(struct state *st, const struct account *account)
{
	struct client *c;

	list_for_each_entry(c, &account->clients, account_link)
		if (st->served[c->index] == c && (prefetch_take_back(st, c) || spare_take_back(c)))
			return true;
	return false;
}

/* Takes back unused memory of other users' clients. Each call looks at a few, in turn. */
static bool others_free_space(struct state *st, const struct account *account)
{
	struct client *c;

	for (unsigned n = 0; n < OTHERS_BUDGET && !list_empty(&st->prefetching); n++) {
		c = list_first_entry(&st->prefetching, struct client, prefetching);
		list_del(&c->prefetching);
		list_add_tail(&st->prefetching, &c->prefetching);
		if (c->account != account && st->served[c->index] == c && prefetch_take_back(st, c))
			return true;
	}
	return false;
}

static bool warm_take_back(struct state *st, const struct segment_totals *where,
			   const struct account *user)
{
	struct segment *seg = segment_pop_warm(&st->common->store, where, user);

	if (seg)
		segments_end(seg);
	return seg;
}

/* True if the charge was refused with @r because the user's part of this namespace is used up, and
 * not only its part of the daemon. */
static bool is_over_part(const struct state *st, struct account *account, uint64_t size, int r)
{
	const struct pool *here = &st->segments.totals.pool;

	return (r & CHARGE_E_USER) &&
	       account_used(account, here) + size > account_max(account, here);
}

/* Takes back the user's own memory first. Takes from others only if @size fits afterwards, so that
 * nothing is thrown away in vain; and first from the user who keeps most. */
bool tensor_free_space(struct state *st, struct account *account, uint64_t size, int refused)
{
	const struct pool *here = &st->segments.totals.pool, *all = &st->common->store.pool;
	/* if this namespace, or the user's part of it, is full, only its own segments help */
	bool only_here = is_full(here, size) || is_over_part(st, account, size, refused);
	const struct segment_totals *where = only_here ? &st->segments.totals : NULL;
	const struct pool *pool = where ? here : all;
	uint64_t warm = where ? where->warm : st->common->store.warm_bytes;

	if (warm_take_back(st, where, account) || own_free_space(st, account))
		return true;
	/* Written as sums: a reload may have lowered the capacity below `used`. */
	if (refused & CHARGE_E_USER ||
	    pool->used + size > pool->capacity + warm + st->prefetched_bytes)
		return false;
	return warm_take_back(st, where, NULL) || others_free_space(st, account);
}

/* True if memory of ended segments will soon be free where it is needed. A user over its maximum
 * needs its own memory back; memory of other users does not help. */
static bool space_is_coming(const struct state *st, struct account *account, uint64_t size, int r)
{
	const struct pool *here = &st->segments.totals.pool;

	if (r & CHARGE_E_USER)
		return is_over_part(st, account, size, r) ? account->going
							  : account_top(account)->going;
	return is_full(here, size) ? st->segments.totals.going : st->common->store.going;
}

/* Returns the outcome for a request whose charge of @size bytes was refused with @r. */
static int segment_refused(struct state *st, struct client *c, const struct tensor_request *rq,
			   uint64_t size, int r)
{
	const struct pool *all = &st->common->store.pool, *here = &st->segments.totals.pool;

	if (!rq->prefetch && !rq->last &&
	    ((!rq->late && space_is_coming(st, c->account, size, r)) ||
	     tensor_free_space(st, c->account, size, r)))
		return STATE_E_SOON;
	if ((r & CHARGE_SHARE) != SHARE_BYTES)
		return r; /* not bytes, but descriptors are used up */
	/* docs/protocol/messages.md, Creating a draft: QUOTA is returned only if no other limit is
	 * in the way */
	return r == STATE_E_QUOTA && !is_full(all, size) && !is_full(here, size) ? STATE_E_QUOTA
										 : STATE_E_FULL;
}

/* Makes a segment. Takes nothing back for a prefetched draft, since that may never be used. */
static int segment_make(struct state *st, struct client *c, const struct tensor_request *rq,
			uint64_t size, struct segment **segp)
{
	bool small = rq->nbytes <= SEGMENT_SMALL_MAX && !rq->own_pages;
	struct pool *all = &st->common->store.pool, *here = &st->segments.totals.pool;
	struct segment *seg = NULL;
	int r;

	if (size > all->capacity || size > here->capacity || size > account_max(c->account, all) ||
	    size > account_max(c->account, here))
		return STATE_E_NEVER;
	r = segment_new(&seg, &st->common->store, &st->segments.totals, st->instance, c->account,
			size, small);
	if (charge_is_refused(r))
		return segment_refused(st, c, rq, size, r);
	if (r)
		return r;
	r = segments_add(&st->segments, seg, c->account);
	if (r) {
		segment_free(seg);
		if (!charge_is_refused(r) || rq->prefetch)
			return r;
		return warm_take_back(st, &st->segments.totals, c->account) ||
				       (r & CHARGE_E_FULL &&
					warm_take_back(st, &st->segments.totals, NULL))
			       ? STATE_E_SOON
			       : r;
	}
	seg->writer = c->id;
	seg->writer_index = c->index;
	if (small)
		small_add(c, seg);
	else
		list_add_tail(&c->large, &seg->writer_link);
	*segp = seg;
	return 0;
}

static int extent_small(struct state *st, struct client *c, const struct tensor_request *rq,
			struct catalog_row *row, struct segment **segp)
{
	uint64_t nbytes = rq->nbytes, need = tensor_pages(nbytes), size;
	struct segment *seg;
	int r;

	*segp = small_take(c, nbytes, SMALL_BUDGET, &row->offset);
	if (*segp)
		return 0;
	/* a larger segment serves more tensors; halve it until there is space */
	for (size = c->small_next > need ? c->small_next : need;;
	     size = size / 2 > need ? size / 2 : need) {
		r = segment_make(st, c, rq, size, &seg);
		if (r != STATE_E_FULL && r != STATE_E_QUOTA && r != STATE_E_SOON &&
		    r != STATE_E_NEVER)
			break; /* a smaller one would not help */
		if (size == need)
			break;
	}
	if (r) {
		*segp = small_take(c, nbytes, UINT_MAX, &row->offset);
		return *segp ? 0 : r;
	}
	r = segment_extent_take(seg, nbytes, &row->offset);
	assert(r == 0);
	*segp = seg;
	return STATE_E_BACKING;
}

static int extent_large(struct state *st, struct client *c, const struct tensor_request *rq,
			struct catalog_row *row, struct segment **segp)
{
	uint64_t nbytes = rq->nbytes, size;
	int r;

	row->offset = 0;
	if (nbytes > st->common->store.pool.capacity || nbytes > st->segments.totals.pool.capacity)
		return STATE_E_NEVER;
	size = tensor_pages(nbytes);
	segments_changed(&st->segments);
	while (!rq->own_pages &&
	       (*segp = segment_take_warm(&st->common->store, &st->segments.totals, c->account,
					  c->id, size))) {
		if ((*segp)->writer == c->id)
			return 0;
		if (segment_is_unused(*segp)) {
			segment_not_handed(*segp); /* its former writer no longer has it */
			(*segp)->writer = c->id;
			(*segp)->writer_index = c->index;
			list_add_tail(&c->large, &(*segp)->writer_link);
			return 0;
		}
		segments_end(*segp); /* its former writer may still write */
	}
	r = segment_make(st, c, rq, size, segp);
	if (r)
		return r;
	(*segp)->once = rq->own_pages;
	return STATE_E_BACKING;
}

/* ---- drafts --------------------------------------------------------------------------------- */

/* Writes the row's fact. To be called before the row, or its extent, can be seen. */
static void row_survives(struct state *st, uint32_t slot)
{
	struct row_fact *fact = catalog_row_fact(&st->catalog, slot);
	const struct tensor *t = &st->tensors[slot];

	if (fact)
		*fact = (struct row_fact){ .owner = t->owner,
					   .first_unit = t->segment ? t->first_unit : 0,
					   .units = t->segment ? t->units : 0,
					   .chunks = t->chunks_reserved,
					   .ring_sum = t->prefetch };
}

static void draft_insert(struct state *st, struct client *c, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct tensor *t = &st->tensors[slot];

	slots_add(st, &c->draft_head, slot);
	if (t->prefetch)
		prefetched_add(st, c, t);
	row_survives(st, slot);
	atomic_store(&row->word, row_word((atomic_load(&row->word) >> 2) + 1, ROW_DRAFT));
}

void draft_end(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	slots_remove(st, &c->draft_head, slot);
	if (t->prefetch)
		prefetched_remove(st, c, t);
	else if (t->doubted)
		list_del(&t->link);
	if (catalog_row(&st->catalog, slot)->name != CATALOG_NONE) {
		st->named--;
		c->members--;
	}
	catalog_chunks_unreserve(&st->catalog, t->chunks_reserved);
	account_give(t->account, pool_of(st, SHARE_CHUNKS), t->chunks_reserved);
	account_give(t->account, pool_of(st, SHARE_DRAFTS), 1);
	t->chunks_reserved = 0;
	atomic_fetch_sub(&st->catalog.header->drafts, 1);
	c->drafts--;
}

static void row_init(struct catalog_row *row, uint64_t nbytes)
{
	uint64_t word = atomic_load(&row->word);

	memset((char *)row + sizeof(row->word), 0, sizeof(*row) - sizeof(row->word));
	atomic_store(&row->word, word & ~(uint64_t)3);
	row->nbytes = nbytes;
	row->segment = row->name = row->chunk = CATALOG_NONE;
}

int tensor_create(struct state *st, struct client *c, const struct tensor_request *rq,
		  uint32_t *slot)
{
	struct segment *seg = NULL;
	struct catalog_row *row;
	int r;

	if (c->drafts - c->members >= CLIENT_DRAFTS_MAX)
		return STATE_E_DRAFTS;
	r = slot_take(st, c, rq, slot);
	if (r)
		return r;
	row = catalog_row(&st->catalog, *slot);
	row_init(row, rq->nbytes);
	if (rq->nbytes > SEGMENT_SMALL_MAX || (rq->own_pages && rq->nbytes))
		r = extent_large(st, c, rq, row, &seg);
	else if (rq->nbytes)
		r = extent_small(st, c, rq, row, &seg);
	if (r && r != STATE_E_BACKING) {
		slot_give(st, c, *slot);
		return r;
	}
	st->tensors[*slot].prefetch = rq->prefetch;
	if (seg) {
		seg->extents++;
		st->tensors[*slot].segment = seg;
		st->tensors[*slot].first_unit = (uint32_t)(row->offset / SEGMENT_UNIT);
		st->tensors[*slot].units = segment_is_small(seg)
						   ? (uint32_t)((rq->nbytes + SEGMENT_UNIT - 1) /
								SEGMENT_UNIT)
						   : 0;
		row->segment = seg->index;
		row->segment_generation = seg->generation;
	}
	if (!r)
		draft_insert(st, c, *slot);
	return r;
}

int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error)
{
	struct segment *seg = st->tensors[slot].segment;

	if (!error && c) {
		if (segment_is_small(seg) && c->small_next < SEGMENT_SMALL_LIMIT)
			c->small_next *= 2;
		segments_live(seg);
		segment_cache(seg);
		draft_insert(st, c, slot);
		return 0;
	}
	if (c && segment_is_small(seg) && c->small_next > tensor_pages(1))
		c->small_next /= 2;
	slot_give(st, c, slot);
	seg->extents--;
	if (error)
		segments_free(seg);
	else
		segments_end(seg);
	return error;
}

/* ---- the end of a tensor -------------------------------------------------------------------- */

/* True if the empty segment is worth keeping. */
static bool segment_is_worth(const struct state *st, const struct segment *seg,
			     const struct client *writer)
{
	if (seg->once || seg->guarded.changed || (!seg->storage->named && !seg->writer))
		return false;
	if (segment_is_small(seg))
		return writer && list_first_entry(&writer->small[SMALL_EMPTY], struct segment,
						  writer_link) == seg; /* keep only one empty one */
	return st->common->store.warm_bytes + seg->size <= st->common->store.warm_max;
}

void segment_emptied(struct state *st, struct segment *seg, struct client *writer)
{
	if (!segment_is_worth(st, seg, writer)) {
		segments_end(seg);
	} else if (!segment_is_small(seg)) {
		segment_keep_warm(seg, (uint64_t)now_mono_ns());
		segments_changed(&st->segments);
		if (st->common->store.warm_count > SEGMENT_WARM_MAX)
			warm_take_back(st, NULL, NULL);
	}
}

static struct client *writer_of(const struct state *st, const struct segment *seg)
{
	struct client *c = seg->writer ? st->served[seg->writer_index] : NULL;

	return c && c->id == seg->writer ? c : NULL;
}

/* ---- charges of holders --------------------------------------------------------------------- */

static uint64_t extent_bytes(const struct tensor *t)
{
	return (uint64_t)t->units * SEGMENT_UNIT;
}

static void extent_charge(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (t->moved || t->sibling != slot || !t->segment || t->segment->device)
		return;
	segment_charge_extent(t->segment, t->account, extent_bytes(t));
	t->moved = true;
}

static void extent_return(struct tensor *t)
{
	if (t->moved)
		segment_return_extent(t->segment, t->account, extent_bytes(t));
	t->moved = false;
}

/* Gives @slot the extent of @with. If @with was alone there, its holders may be charged for the
 * extent; the segment takes that charge back. */
void draft_share(struct state *st, uint32_t slot, uint32_t with)
{
	extent_return(&st->tensors[with]);
	extent_share(st, slot, with);
	row_survives(st, slot);
}

/* Only holders keep a deleted name. Charges it to the account of the first row that they keep. */
static void name_charge(struct state *st, uint32_t index)
{
	uint32_t slot = st->names.info[index].retired;

	if (slot != CATALOG_NONE && catalog_name(&st->catalog, index)->current == 0)
		name_own(&st->names, index, st->tensors[slot].account);
}

static void row_charge_to(struct state *st, uint32_t slot, struct account *account)
{
	struct tensor *t = &st->tensors[slot];
	struct account *before = t->account;

	extent_return(t);
	t->account = account;
	account_move(before, account, pool_of(st, SHARE_CHUNKS), t->chunks);
	account_move(before, account, pool_of(st, SHARE_TENSORS), 1);
	name_charge(st, catalog_row(&st->catalog, slot)->name);
}

void tensor_charge_to(struct state *st, uint32_t slot, struct account *account)
{
	if (st->tensors[slot].account == account)
		return;
	row_charge_to(st, slot, account);
	st->tensors[slot].held = true;
	extent_charge(st, slot);
}

void tensor_charge_back(struct state *st, uint32_t slot, struct account *account)
{
	row_charge_to(st, slot, account);
	st->tensors[slot].held = false;
}

/* ---- the end of an extent ------------------------------------------------------------------ */

static void extent_give(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = t->segment;
	struct client *writer = NULL;

	st->common->space_freed++;
	extent_return(t);
	if (extent_unlink(st, slot)) {
		seg->extents--; /* the others keep the extent and the notice */
		return;
	}
	if (t->sibling != slot) {
		uint32_t other = t->sibling;

		extent_unjoin(st, slot);
		if (st->tensors[other].held) /* it may be the only tensor there now */
			extent_charge(st, other);
		if (!seg || !seg->device) /* unless a group's member has its own extent */
			return;
	}
	if (!seg)
		return;
	if (seg->device) {
		export_extent_left(st, seg, t->freed);
		return;
	}
	seg->extents--;
	if (segment_is_small(seg)) {
		writer = writer_of(st, seg);
		small_give(writer, seg, (uint64_t)t->first_unit * SEGMENT_UNIT,
			   (uint64_t)t->units * SEGMENT_UNIT);
	}
	if (seg->extents == 0)
		segment_emptied(st, seg, writer);
}

void tensor_reclaim(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	catalog_row_unsum(&st->catalog, slot);
	atomic_store(&row->word, atomic_load(&row->word) & ~(uint64_t)3); /* FREE */
	atomic_thread_fence(memory_order_release); /* ORDER: FREE before the rest; lease_stands() */
	extent_give(st, slot);
	catalog_chunks_give(&st->catalog, row->chunk);
	if (row->name != CATALOG_NONE) {
		name_unpin(&st->names, row->name);
		name_charge(st, row->name);
	}
	row->chunk = row->name = CATALOG_NONE;
	slot_discharge(st, st->tensors[slot].account, st->tensors[slot].chunks, false);
	ring_left(st, slot);
	st->tensors[slot] = (struct tensor){ .sibling = slot, .sibling_prev = slot };
	row_give(st, slot);
}

/* ---- the end of a draft --------------------------------------------------------------------- */

bool draft_find(const struct state *st, const struct client *c, uint64_t ref, uint32_t *slot)
{
	*slot = ref_slot(ref);
	return *slot < st->catalog.rows.high &&
	       catalog_row(&st->catalog, *slot)->word == row_word(ref_generation(ref), ROW_DRAFT) &&
	       st->tensors[*slot].owner == c->index;
}

void draft_give_up(struct state *st, struct client *c, uint32_t slot)
{
	draft_end(st, c, slot);
	tensor_reclaim(st, slot);
}

bool draft_leave(struct state *st, struct client *c, uint32_t slot)
{
	uint32_t member = st->tensors[slot].group ? st->tensors[slot].sibling : slot;

	draft_give_up(st, c, member);
	return member == slot;
}

void draft_grouped(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	t->group = true;
	if (t->prefetch) /* it is an ordinary draft now */
		prefetched_remove(st, c, t);
}

int draft_new_member(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot)
{
	int r;

	if (c->drafts >= CLIENT_DRAFTS_MAX + WIRE_GROUP_MAX)
		return STATE_E_DRAFTS;
	r = slot_take(st, c, rq, slot);
	if (r)
		return r;
	row_init(catalog_row(&st->catalog, *slot), rq->nbytes);
	draft_insert(st, c, *slot);
	return 0;
}
