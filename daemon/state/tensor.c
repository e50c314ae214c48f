/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors. A slot is FREE; then DRAFT, in the ring of its client's drafts; then LIVE, pinned to its
 * name; then RETIRED; then FREE again with the next generation. From DRAFT to FREE it has its place
 * in a segment. Invariants: (1) what commit needs is set aside by create, so that a well-formed
 * commit does not fail for want of room; (2) every early return gives back what was taken. Loop
 * thread only.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/state/export.h"
#include "daemon/state/outcome.h"
#include "daemon/state/tensor.h"
#include "proto/wire.h"
#include "util/clock.h"

#define PAGE ((uint64_t)4096)

/* ---- slots ---------------------------------------------------------------------------------- */

static int slot_reserve(struct state *st, const struct tensor_request *rq, uint32_t *chunks)
{
	int r;

	*chunks = catalog_chunks_for(rq->extra) + catalog_chunks_for(TENSOR_NAME_MAX);
	/* each draft that has no name yet may need one */
	r = name_prepare(&st->names, st->catalog.header->drafts - st->named + 1);
	if (r)
		return r;
	do {
		r = catalog_chunks_reserve(&st->catalog, *chunks);
	} while (r && name_evict(&st->names));
	return r;
}

static int slot_take(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot)
{
	struct tensor *t;
	uint32_t chunks;
	int r;

	r = slot_reserve(st, rq, &chunks);
	if (r)
		return r < 0 ? r : STATE_E_TENSORS;
	r = catalog_take(&st->catalog, &st->catalog.rows, slot);
	if (r) {
		catalog_chunks_unreserve(&st->catalog, chunks);
		return r < 0 ? r : STATE_E_TENSORS;
	}
	if (atomic_load(&st->catalog.header->slots_high) < st->catalog.rows.high)
		atomic_store(&st->catalog.header->slots_high, st->catalog.rows.high);
	t = &st->tensors[*slot];
	*t = (struct tensor){
		.share = *slot, .share_prev = *slot, .owner = c->index, .next = *slot, .prev = *slot
	};
	t->chunks_reserved = (uint16_t)chunks;
	atomic_fetch_add(&st->catalog.header->drafts, 1);
	c->drafts++;
	return 0;
}

/* After the last generation the slot stays taken: its next life would have the ref of an earlier
 * one. */
static void row_give(struct state *st, uint32_t slot)
{
	if (catalog_row(&st->catalog, slot)->word >> 2 < ROW_GENERATION_MAX)
		catalog_give(&st->catalog.rows, slot);
}

static void slot_give(struct state *st, struct client *c, uint32_t slot)
{
	catalog_chunks_unreserve(&st->catalog, st->tensors[slot].chunks_reserved);
	st->tensors[slot] = (struct tensor){ .share = slot, .share_prev = slot };
	row_give(st, slot);
	atomic_fetch_sub(&st->catalog.header->drafts, 1);
	if (c)
		c->drafts--;
}

/* ---- room ------------------------------------------------------------------------------------ */

static void draft_give_up(struct state *st, struct client *c, uint32_t slot);

/*
 * Takes one prefetched draft back if it is unused. Its client counts a hold, then looks whether the
 * row is still a draft. It gives up the hold when it has sent COMMIT.
 *
 * ORDER: the store and the read here are T1 and T2 of lease.c. The hold is read before the socket:
 * if it is 0 because COMMIT was sent, that COMMIT is in the socket or has been handled.
 */
static enum room prefetch_try_back(struct state *st, struct client *c, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t word = atomic_load(&row->word);
	bool held;

	atomic_store(&row->word, word | ROW_RETIRED);
	held = client_leases_on(c, slot);
	if (!held && !(st->unread && st->unread(c))) {
		draft_give_up(st, c, slot); /* it never becomes a DRAFT again */
		return ROOM_MADE;
	}
	atomic_store(&row->word, word);
	if (!held) {
		c->room_unread = true;
		return ROOM_LATER;
	}
	st->tensors[slot].prefetch = false; /* it is in use, and a draft like others from now on */
	st->prefetched--;
	return ROOM_NONE;
}

static enum room prefetch_take_back(struct state *st, struct client *c)
{
	uint32_t slot = c->draft_head, head = slot;
	enum room room = ROOM_NONE;

	if (slot == CATALOG_NONE)
		return ROOM_NONE;
	do {
		if (st->tensors[slot].prefetch)
			room = prefetch_try_back(st, c, slot);
		if (room != ROOM_NONE)
			return room;
		slot = st->tensors[slot].next;
	} while (slot != head);
	return ROOM_NONE;
}

void tensor_messages_read(struct state *st, struct client *c)
{
	if (c->room_unread)
		st->memory.room_made++;
	c->room_unread = false;
}

/* Takes back the empty segment for small tensors that its writer may keep. */
static bool spare_take_back(struct state *st, struct client *c)
{
	struct segment *seg;

	list_for_each_entry(seg, &c->small, writer_link) {
		if (seg->places == 0) {
			memory_end(&st->memory, seg);
			return true;
		}
	}
	return false;
}

enum room tensor_make_room(struct state *st, const struct quota_user *user)
{
	struct segment *seg = segment_pop_warm(&st->memory.store, user);
	bool later = false;
	enum room room;
	struct client *c;

	if (seg) {
		memory_end(&st->memory, seg);
		return ROOM_MADE;
	}
	for (uint32_t i = 0; i < st->catalog.clients.high; i++) {
		c = st->served[i];
		if (!c || (user && c->user != user))
			continue;
		room = st->prefetched ? prefetch_take_back(st, c) : ROOM_NONE;
		if (room == ROOM_MADE || spare_take_back(st, c))
			return ROOM_MADE;
		later |= room == ROOM_LATER;
	}
	return later ? ROOM_LATER : ROOM_NONE;
}

/* Nothing is taken from others for a prefetched draft, since it may never be used. */
static int segment_make(struct state *st, struct client *c, const struct tensor_request *rq,
			uint64_t size, struct segment **segp)
{
	bool small = rq->nbytes <= SEGMENT_SMALL_MAX;
	struct quota *quota = &st->memory.store.quota;
	struct segment *seg = NULL;
	int r;

	if (size > quota->capacity || size > quota->user_capacity)
		return STATE_E_NEVER;
	r = segment_new(&seg, &st->memory.store, c->user, size, small);
	if (r == SEGMENT_E_FULL || r == SEGMENT_E_USER) {
		if (!rq->prefetch && (st->memory.store.going ||
				      tensor_make_room(st, r == SEGMENT_E_USER ? c->user : NULL)))
			return STATE_E_SOON;
		/* PROTOCOL.md section 4: QUOTA is only said if nothing else is in the way */
		return r == SEGMENT_E_USER && size <= quota->capacity - quota->used ? STATE_E_QUOTA
										    : STATE_E_FULL;
	}
	if (r)
		return r;
	r = memory_add(&st->memory, seg);
	if (r) {
		segment_free(seg);
		return r;
	}
	seg->writer = c->id;
	list_add_tail(small ? &c->small : &c->large, &seg->writer_link);
	*segp = seg;
	return 0;
}

static int place_small(struct state *st, struct client *c, const struct tensor_request *rq,
		       struct catalog_row *row, struct segment **segp)
{
	uint64_t nbytes = rq->nbytes, need = (nbytes + PAGE - 1) / PAGE * PAGE, size;
	struct segment *seg;
	int r;

	list_for_each_entry(seg, &c->small, writer_link) {
		if (seg->state == SEGMENT_LIVE && !segment_place_take(seg, nbytes, &row->offset)) {
			*segp = seg;
			return 0;
		}
	}
	/* a larger segment serves more tensors; halve it until there is room */
	for (size = c->small_next > need ? c->small_next : need;;
	     size = size / 2 > need ? size / 2 : need) {
		r = segment_make(st, c, rq, size, &seg);
		if (r <= 0 || size == need || r == STATE_E_TENSORS)
			break;
	}
	if (r)
		return r;
	r = segment_place_take(seg, nbytes, &row->offset);
	assert(r == 0);
	if (c->small_next < SEGMENT_SMALL_LIMIT)
		c->small_next *= 2;
	*segp = seg;
	return STATE_E_BACKING;
}

static int place_large(struct state *st, struct client *c, const struct tensor_request *rq,
		       struct catalog_row *row, struct segment **segp)
{
	uint64_t nbytes = rq->nbytes, size;
	int r;

	row->offset = 0;
	if (nbytes > st->memory.store.quota.capacity)
		return STATE_E_NEVER;
	size = (nbytes + PAGE - 1) / PAGE * PAGE;
	while ((*segp = segment_take_warm(&st->memory.store, c->user, c->id, size))) {
		if ((*segp)->writer == c->id)
			return 0;
		if (object_is_written(&(*segp)->object) == 0) {
			(*segp)->writer = c->id;
			list_add_tail(&c->large, &(*segp)->writer_link);
			return 0;
		}
		memory_end(&st->memory, *segp); /* its former writer, or a child of it, may still
						 * write
						 */
	}
	r = segment_make(st, c, rq, size, segp);
	return r ? r : STATE_E_BACKING;
}

/* ---- drafts --------------------------------------------------------------------------------- */

static void draft_link(struct state *st, struct client *c, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct tensor *t = &st->tensors[slot], *head;

	if (c->draft_head == CATALOG_NONE) {
		c->draft_head = slot;
	} else {
		head = &st->tensors[c->draft_head];
		t->next = c->draft_head;
		t->prev = head->prev;
		st->tensors[head->prev].next = slot;
		head->prev = slot;
	}
	if (t->prefetch)
		st->prefetched++;
	atomic_store(&row->word, row_word((atomic_load(&row->word) >> 2) + 1, ROW_DRAFT));
}

void draft_end(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (t->next == slot) {
		c->draft_head = CATALOG_NONE;
	} else {
		if (c->draft_head == slot)
			c->draft_head = t->next;
		st->tensors[t->next].prev = t->prev;
		st->tensors[t->prev].next = t->next;
	}
	if (t->prefetch)
		st->prefetched--;
	t->prefetch = false;
	st->named -= catalog_row(&st->catalog, slot)->name != CATALOG_NONE;
	catalog_chunks_unreserve(&st->catalog, t->chunks_reserved);
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

	if (c->drafts >= CLIENT_DRAFTS_MAX)
		return STATE_E_DRAFTS;
	r = slot_take(st, c, rq, slot);
	if (r)
		return r;
	row = catalog_row(&st->catalog, *slot);
	row_init(row, rq->nbytes);
	if (rq->nbytes > SEGMENT_SMALL_MAX)
		r = place_large(st, c, rq, row, &seg);
	else if (rq->nbytes)
		r = place_small(st, c, rq, row, &seg);
	if (r && r != STATE_E_BACKING) {
		slot_give(st, c, *slot);
		return r;
	}
	st->tensors[*slot].prefetch = rq->prefetch;
	if (seg) {
		seg->places++;
		st->tensors[*slot].segment = seg;
		st->tensors[*slot].place = (uint32_t)(row->offset / SEGMENT_UNIT);
		st->tensors[*slot].units = segment_is_small(seg)
						   ? (uint32_t)((rq->nbytes + SEGMENT_UNIT - 1) /
								SEGMENT_UNIT)
						   : 0;
		row->segment = seg->index;
		row->segment_generation = seg->generation;
	}
	if (!r)
		draft_link(st, c, *slot);
	return r;
}

int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error)
{
	struct segment *seg = st->tensors[slot].segment;

	if (!error && c) {
		memory_live(&st->memory, seg);
		segment_cache(seg);
		draft_link(st, c, slot);
		return 0;
	}
	slot_give(st, c, slot);
	seg->places--;
	if (error)
		memory_free(&st->memory, seg);
	else
		memory_end(&st->memory, seg);
	return error;
}

/* ---- the end of a tensor -------------------------------------------------------------------- */

static bool small_is_spare(const struct segment *seg, const struct list *segments)
{
	const struct segment *other;

	list_for_each_entry(other, segments, writer_link) {
		if (other != seg && other->places == 0)
			return true;
	}
	return false;
}

/* Is the empty segment worth keeping? */
static bool segment_is_worth(const struct state *st, const struct segment *seg,
			     const struct client *writer)
{
	if (seg->guarded.changed)
		return false;
	if (segment_is_small(seg))
		return writer && !small_is_spare(seg, &writer->small);
	return st->memory.store.warm_bytes + seg->size <= st->memory.store.warm_max;
}

static void segment_emptied(struct state *st, struct segment *seg, struct client *writer)
{
	if (!segment_is_worth(st, seg, writer)) {
		memory_end(&st->memory, seg);
	} else if (!segment_is_small(seg)) {
		segment_keep_warm(seg, (uint64_t)now_mono_ns());
		if (st->memory.store.warm_count > SEGMENT_WARM_MAX)
			memory_end(&st->memory, segment_pop_warm(&st->memory.store, NULL));
	}
}

static struct client *writer_of(const struct state *st, const struct segment *seg)
{
	for (uint32_t i = 0; seg->writer && i < st->catalog.clients.high; i++) {
		if (st->served[i] && st->served[i]->id == seg->writer)
			return st->served[i];
	}
	return NULL;
}

/* Takes @slot out of the ring of those that share its place. */
static void share_leave(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	st->tensors[t->share_prev].share = t->share;
	st->tensors[t->share].share_prev = t->share_prev;
}

void draft_share(struct state *st, uint32_t slot, uint32_t with)
{
	struct tensor *t = &st->tensors[slot], *w = &st->tensors[with];

	t->segment = w->segment;
	t->place = w->place;
	t->units = w->units;
	t->share = w->share;
	t->share_prev = with;
	st->tensors[w->share].share_prev = slot;
	w->share = slot;
}

static void place_give(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = t->segment;

	st->memory.room_made++;
	if (t->share != slot) {
		share_leave(st, slot);
		return;
	}
	if (!seg)
		return;
	if (seg->device) {
		export_place_left(st, seg, t->freed);
		return;
	}
	seg->places--;
	if (segment_is_small(seg))
		segment_place_give(seg, (uint64_t)t->place * SEGMENT_UNIT,
				   (uint64_t)t->units * SEGMENT_UNIT);
	if (seg->places == 0)
		segment_emptied(st, seg, segment_is_small(seg) ? writer_of(st, seg) : NULL);
}

void tensor_reclaim(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	atomic_store(&row->word, atomic_load(&row->word) & ~(uint64_t)3); /* FREE */
	place_give(st, slot);
	catalog_chunks_give(&st->catalog, row->chunk);
	if (row->name != CATALOG_NONE)
		name_unpin(&st->names, row->name);
	row->chunk = row->name = CATALOG_NONE;
	st->tensors[slot] = (struct tensor){ .share = slot, .share_prev = slot };
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

bool draft_request(const struct state *st, const struct client *c, uint64_t ref,
		   struct tensor_request *rq)
{
	uint32_t slot;

	/* a draft of a group has used up what it set aside */
	if (!draft_find(st, c, ref, &slot) || st->tensors[slot].group ||
	    catalog_row(&st->catalog, slot)->name != CATALOG_NONE)
		return false;
	rq->nbytes = catalog_row(&st->catalog, slot)->nbytes;
	rq->extra = (st->tensors[slot].chunks_reserved - catalog_chunks_for(TENSOR_NAME_MAX)) *
		    CATALOG_CHUNK_BYTES;
	return true;
}

/* The members of a group share the memory of @slot, and end with it. */
static void members_abort(struct state *st, struct client *c, uint32_t slot)
{
	uint32_t member;

	while ((member = st->tensors[slot].share) != slot) {
		draft_end(st, c, member);
		tensor_reclaim(st, member);
	}
}

static void draft_give_up(struct state *st, struct client *c, uint32_t slot)
{
	if (st->tensors[slot].group)
		members_abort(st, c, slot);
	draft_end(st, c, slot);
	tensor_reclaim(st, slot);
}

void tensor_abort(struct state *st, struct client *c, uint64_t ref)
{
	uint32_t slot;

	if (draft_find(st, c, ref, &slot))
		draft_give_up(st, c, slot);
}

int draft_take_name(struct state *st, uint32_t slot, const struct name_key *key, uint32_t *name)
{
	struct tensor *t = &st->tensors[slot];
	uint32_t chunks;
	int r = name_take(&st->names, key, name, &chunks);

	t->chunks_reserved = (uint16_t)(t->chunks_reserved - chunks);
	return r;
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
	draft_link(st, c, *slot);
	return 0;
}
