/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: their table, their members and their rows; see stream.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/lease.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/stream_order.h"
#include "daemon/state/survive.h"
#include "daemon/state/tensor.h"
#include "tensor/dtype.h"
#include "util/clock.h"
#include "util/fault.h"

/* ---- finding -------------------------------------------------------------------------------- */

struct stream *stream_of(const struct state *st, uint64_t ref)
{
	struct ring *ring = ref & REF_STREAM ? ring_find(st, ref, true) : NULL;

	return ring && !ring->stream->over ? ring->stream : NULL;
}

/* ---- without members ------------------------------------------------------------------------ */

static uint32_t members_high(const struct stream *s)
{
	uint32_t high = atomic_load(&s->entry->high);

	return high < STREAM_MEMBERS ? high : STREAM_MEMBERS;
}

static bool has_members(const struct stream *s)
{
	for (uint32_t i = 0; i < members_high(s); i++)
		if (stream_member_state(atomic_load(&s->entry->members[i].word)) != STREAM_FREE)
			return true;
	return false;
}

void stream_idle(struct state *st, struct stream *s)
{
	struct heap *ends = &st->lifetimes.streams;
	bool idle = !s->over && !has_members(s);

	if (idle && s->entry->ttl_ns && !s->entry->idle_ns)
		s->entry->idle_ns = (uint64_t)now_mono_ns();
	else if (!idle && !s->over)
		s->entry->idle_ns = 0;
	heap_remove(ends, &s->idle);
	if (idle && s->entry->ttl_ns)
		heap_add(ends, &s->idle, s->entry->idle_ns + s->entry->ttl_ns);
	lifetime_schedule(st);
}

/* ---- making --------------------------------------------------------------------------------- */

static struct stream *stream_alloc(void)
{
	struct stream *s = fault("stream") ? NULL : calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	ring_init(&s->ring);
	s->ring.stream = s;
	list_init(&s->due);
	for (unsigned i = 0; i < STREAM_MEMBERS; i++) {
		s->members[i].stream = s;
		list_init(&s->members[i].of_client);
	}
	memset(s->owner, STREAM_NO_OWNER, sizeof(s->owner));
	for (unsigned i = 0; i < STREAM_ENTRIES; i++)
		s->slots[i] = CATALOG_NONE;
	return s;
}

struct stream *stream_adopted(uint32_t depth)
{
	struct stream *s = stream_alloc();

	if (s)
		s->ring.size = stream_page_size(depth);
	return s;
}

/* Takes the name for the stream, and pins it. Its chunks are charged like those of a draft. */
static int name_for(struct state *st, struct client *c, const struct name_key *key, uint32_t *index)
{
	struct pool *pool = &st->catalog.pools[SHARE_CHUNKS];
	uint32_t chunks = catalog_chunks_for(TENSOR_NAME_MAX), used = 0;
	int r = account_take(c->account, pool, chunks);

	if (r)
		return r;
	r = name_prepare(&st->names, st->catalog.header->drafts - st->named + 1);
	if (!r)
		r = name_chunks_reserve(&st->names, chunks);
	if (!r) {
		r = name_take(&st->names, c->account, key, index, &used);
		catalog_chunks_unreserve(&st->catalog, chunks - used);
	}
	account_give(c->account, pool, chunks - used);
	if (!r)
		name_pin(&st->names, *index);
	return r;
}

static void entry_write(struct client *c, struct stream *s, const struct stream_request *rq,
			uint32_t name)
{
	struct catalog_stream *e = s->entry;

	memset(e, 0, sizeof(*e));
	e->mode = rq->mode;
	e->depth = rq->depth;
	e->keep = rq->keep;
	e->max_tries = rq->max_tries;
	e->flags = rq->flags;
	e->name = name;
	e->created_ns = (uint64_t)now_real_ns();
	e->ttl_ns = rq->ttl_ns;
	e->owner = c->index;
	e->owner_generation = c->generation;
	atomic_store(&s->ring.order->tail, stream_words(rq->depth));
	if (rq->mode == STREAM_QUEUE)
		for (unsigned i = 0; i < STREAM_ENTRIES; i++)
			atomic_store(&s->ring.order->take[i], stream_take(0, 0, STREAM_DONE));
	atomic_store(&e->ref, ring_ref(&s->ring));
}

/* Makes the name mean the stream. Clients that wait for a tensor there wake and see a stream. */
static void name_begins(struct state *st, struct client *c, struct stream *s, uint32_t index)
{
	struct catalog_name *name = catalog_name(&st->catalog, index);
	unsigned wakes = CATALOG_WAKE_BUDGET;

	s->ring.name = index;
	st->names.info[index].uid = c->uid;
	name_own(&st->names, index, c->account);
	atomic_store(&name->current, ring_ref(&s->ring));
	atomic_fetch_add(&st->catalog.header->streams, 1);
	catalog_wake(&st->catalog, index, true, &wakes);
}

static int stream_new(struct state *st, struct client *c, const struct name_key *key,
		      const struct stream_request *rq, struct stream **out)
{
	struct stream *s = stream_alloc();
	uint32_t name = CATALOG_NONE;
	int r = s ? 0 : -ENOMEM;

	if (!r) {
		s->ring.size = stream_page_size(rq->depth);
		r = ring_take_index(st, c, &s->ring);
	}
	if (!r)
		r = name_for(st, c, key, &name);
	if (!r) {
		s->entry = catalog_stream(&st->catalog, s->ring.index);
		r = ring_survives_as(
			st, &s->ring,
			&(struct ring_fact){ .owner = rq->depth, .owner_generation = rq->mode });
	}
	if (r) {
		if (name != CATALOG_NONE)
			name_unpin(&st->names, name);
		if (s)
			ring_untake(st, &s->ring);
		return r;
	}
	entry_write(c, s, rq, name);
	name_begins(st, c, s, name);
	stream_idle(st, s);
	*out = s;
	return 0;
}

int stream_find(struct state *st, struct client *c, const struct name_key *key,
		const struct stream_request *rq, struct stream **out)
{
	uint32_t index = name_find(&st->names, key);
	uint64_t current = index == CATALOG_NONE ? 0 : catalog_name(&st->catalog, index)->current;

	*out = stream_of(st, current);
	if (*out)
		return st->names.info[index].uid == c->uid || c->uid == 0 ||
				       c->uid == st->common->uid ||
				       (*out)->entry->flags & STREAM_SHARED
			       ? 0
			       : STATE_E_DENIED;
	if (current)
		return STATE_E_KIND;
	return rq->make ? stream_new(st, c, key, rq, out) : STATE_E_NOT_FOUND;
}

/* ---- members -------------------------------------------------------------------------------- */

static uint64_t member_word(const struct stream *s, uint32_t member)
{
	return atomic_load(&s->entry->members[member].word);
}

/* The member of @c in that role with that line, or STREAM_MEMBERS. */
static uint32_t member_find(const struct stream *s, const struct client *c, unsigned role,
			    unsigned line)
{
	const struct stream_membership *m;
	uint32_t i;

	for (i = 0; i < STREAM_MEMBERS; i++) {
		uint64_t word = member_word(s, i);

		m = &s->members[i];
		if (m->client == c && stream_member_state(word) == STREAM_LIVE &&
		    stream_member_role(word) & role & (STREAM_PRODUCER | STREAM_SUBSCRIBER) &&
		    stream_member_line(word) == line)
			break;
	}
	return i;
}

static uint32_t member_free(const struct stream *s)
{
	uint32_t i = 0;

	while (i < STREAM_MEMBERS &&
	       (s->members[i].client || stream_member_state(member_word(s, i)) != STREAM_FREE))
		i++;
	return i;
}

/* True if another member of @c has that line. */
static bool line_is_used(const struct client *c, unsigned line)
{
	struct stream_membership *m;

	list_for_each_entry(m, &c->memberships, of_client) {
		uint64_t word = member_word(m->stream, (uint32_t)(m - m->stream->members));

		if (stream_member_line(word) == line)
			return true;
	}
	return false;
}

void stream_belongs(struct stream *s, struct client *c, uint32_t member)
{
	s->members[member].client = c;
	list_add_tail(&c->memberships, &s->members[member].of_client);
	c->membership_count++;
}

static void member_make(struct state *st, struct stream *s, struct client *c, unsigned role,
			unsigned line, uint32_t member)
{
	struct stream_member *m = &s->entry->members[member];

	m->pid = c->pid;
	m->generation = c->generation;
	atomic_store(&m->word, stream_member_word(c->index, role, line, STREAM_LIVE)); /* J1 */
	if (atomic_load(&s->entry->high) <= member)
		atomic_store(&s->entry->high, member + 1);
	atomic_fetch_add(&s->entry->changes, 1);
	stream_belongs(s, c, member);
	stream_idle(st, s);
}

/* The number at which a subscriber starts, if the order ends at @end. */
static uint64_t first_number(const struct stream *s, uint64_t end, bool kept)
{
	uint64_t least = stream_words(s->entry->depth), back = kept ? s->entry->keep : 0;

	if (s->entry->mode == STREAM_QUEUE) /* it searches all words of the order */
		back = least - 1;
	return end - least > back ? end - back : least;
}

int stream_join(struct state *st, struct client *c, struct stream *s, unsigned role, unsigned line,
		bool kept, uint32_t *member, uint64_t *number)
{
	uint64_t end;

	if (s->entry->flags & STREAM_DROPS_OLDEST && role & STREAM_SUBSCRIBER)
		role |= STREAM_LOSSY;
	*member = member_find(s, c, role, line);
	if (*member == STREAM_MEMBERS) {
		if (line_is_used(c, line))
			return STATE_E_INVALID;
		*member = member_free(s);
		if (*member == STREAM_MEMBERS)
			return STATE_E_MEMBERS;
		member_make(st, s, c, role, line, *member);
	}
	end = stream_order_end(s); /* J2 */
	*number = role & STREAM_SUBSCRIBER ? first_number(s, end, kept) : end;
	return 0;
}

const struct client *stream_subscriber(const struct stream *s, const struct client *asks,
				       uint32_t member)
{
	unsigned role = stream_member_role(member_word(s, member));
	bool produces = false;

	for (uint32_t i = 0; i < STREAM_MEMBERS; i++)
		produces |= s->members[i].client == asks &&
			    stream_member_role(member_word(s, i)) & STREAM_PRODUCER;
	return produces && role & STREAM_SUBSCRIBER ? s->members[member].client : NULL;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static bool row_may_be(struct state *st, struct client *c, uint64_t ref, uint32_t *slot)
{
	const char *why;

	return draft_find(st, c, ref, slot) && !st->tensors[*slot].group &&
	       catalog_row(&st->catalog, *slot)->name == CATALOG_NONE &&
	       catalog_row(&st->catalog, *slot)->nbytes / 8 <= UINT32_MAX &&
	       st->tensors[*slot].segment && !st->tensors[*slot].segment->once &&
	       !st->tensors[*slot].segment->device && !segments_seal(st, *slot, &why);
}

static void row_begins(struct state *st, struct client *c, struct stream *s, uint32_t slot,
		       unsigned entry)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	/* readers of the row alone see 64-bit words, with a 32-bit count: 32 GiB at most */
	row->dtype_code = TL_DTYPE_UINT;
	row->dtype_bits = 64;
	row->dtype_lanes = 1;
	row->ndim = 1;
	row->shape[0] = (uint32_t)(row->nbytes / 8);
	row->meta[0] = s->owner[entry]; /* for the next daemon; a stream's row has no metadata */
	row->flags = ROW_RING;
	row->uid = c->uid;
	draft_end(st, c, slot);
	name_pin(&st->names, s->ring.name);
	row->name = s->ring.name;
	row->ring = ring_slot_make(ring_ref(&s->ring), entry);
	s->slots[entry] = slot;
	st->tensors[slot].ring = &s->ring;
	s->ring.left++;
	ring_row_resum(st, slot, row->word >> 2);
	atomic_store(&row->word, row_word(row->word >> 2, ROW_LIVE));
}

/* True if the row is one of @c's, in that generation. */
static bool row_is_of(const struct state *st, const struct client *c, const struct stream *s,
		      uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	unsigned owner;

	if (ref & REF_RING || slot >= st->catalog.rows.high || st->tensors[slot].ring != &s->ring ||
	    catalog_row(&st->catalog, slot)->word != row_word(ref_generation(ref), ROW_LIVE))
		return false;
	owner = s->owner[ring_slot_index(catalog_row(&st->catalog, slot)->ring)];
	return owner != STREAM_NO_OWNER && s->members[owner].client == c;
}

int stream_rows(struct state *st, struct client *c, struct stream *s, uint32_t member,
		const uint64_t *refs, unsigned count, uint16_t *entries)
{
	uint32_t slots[STREAM_ROWS_MAX];
	unsigned n = 0;

	while (n < count && row_is_of(st, c, s, refs[n])) { /* a former daemon has done that */
		entries[n] = (uint16_t)ring_slot_index(
			catalog_row(&st->catalog, ref_slot(refs[n]))->ring);
		n++;
	}
	if (n == count)
		return 0;
	n = 0;
	if (member >= STREAM_MEMBERS || s->members[member].client != c ||
	    !(stream_member_role(member_word(s, member)) & STREAM_PRODUCER))
		return STATE_E_STALE;
	for (unsigned i = 0; i < count; i++) {
		if (!row_may_be(st, c, refs[i], &slots[i]))
			return STATE_E_STALE;
		for (unsigned k = 0; k < i; k++)
			if (slots[k] == slots[i])
				return STATE_E_STALE;
	}
	for (unsigned e = 0; e < STREAM_ENTRIES && n < count; e++)
		if (s->slots[e] == CATALOG_NONE)
			entries[n++] = (uint16_t)e;
	if (n < count)
		return STATE_E_MEMBERS;
	for (unsigned i = 0; i < count; i++) {
		s->owner[entries[i]] = (uint8_t)member;
		row_begins(st, c, s, slots[i], entries[i]);
	}
	return 0;
}

/* The tensor on a GPU that has the name of the row's entry, or CATALOG_NONE. It is found by
 * name, not by the entry: a producer may have died after it made the tensor and before the item. */
static uint32_t row_device(struct state *st, const struct stream *s, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	char stream[TENSOR_NAME_MAX + 1], text[TENSOR_NAME_MAX + 32];
	struct name_key key;
	uint64_t ref = 0;
	uint32_t name;

	if (s->over)
		return CATALOG_NONE;
	stream[name_text(&st->names, s->ring.name, stream)] = '\0';
	snprintf(text, sizeof(text), STREAM_DEVICE_NAME, stream, ring_slot_index(row->ring));
	key = name_key(text, strlen(text));
	name = key.len > TENSOR_NAME_MAX ? CATALOG_NONE : name_find(&st->names, &key);
	if (name != CATALOG_NONE)
		ref = catalog_name(&st->catalog, name)->current;
	return ref && !(ref & REF_RING) && catalog_row(&st->catalog, ref_slot(ref))->uid == row->uid
		       ? ref_slot(ref)
		       : CATALOG_NONE;
}

static void row_device_go(struct state *st, const struct stream *s, uint32_t slot)
{
	uint32_t device = row_device(st, s, slot);

	if (device != CATALOG_NONE)
		lifetime_end_soon(st, device);
}

void stream_devices_go(struct state *st, const struct stream *s)
{
	for (unsigned e = 0; e < STREAM_ENTRIES; e++)
		if (s->slots[e] != CATALOG_NONE)
			row_device_go(st, s, s->slots[e]);
}

void stream_row_retire(struct state *st, struct account *a, struct stream *s, uint32_t slot)
{
	row_device_go(st, s, slot);
	lease_retire(st, a, slot);
}

/* Notes in the row that it has no producer, for the next daemon: the member's index is reused. */
void stream_row_orphan(struct state *st, struct stream *s, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	s->owner[ring_slot_index(row->ring)] = STREAM_NO_OWNER;
	row->meta[0] = STREAM_NO_OWNER;
	if (row_word_state(row->word) != ROW_LIVE) /* no item: it is not retired again */
		row_device_go(st, s, slot);
}

void stream_retire(struct state *st, struct client *c, struct stream *s, const uint64_t *refs,
		   unsigned count, bool for_good)
{
	for (unsigned i = 0; i < count; i++) {
		uint32_t slot = ref_slot(refs[i]);

		if (!row_is_of(st, c, s, refs[i]))
			continue;
		if (for_good) {
			stream_row_orphan(st, s, slot);
			stream_row_retire(st, c->account, s, slot);
		} else {
			lease_retire(st, c->account, slot);
		}
	}
}

bool stream_has_row(struct state *st, struct stream *s, uint32_t slot)
{
	unsigned entry = ring_slot_index(catalog_row(&st->catalog, slot)->ring);
	unsigned owner = catalog_row(&st->catalog, slot)->meta[0];
	uint64_t word = owner < STREAM_MEMBERS ? member_word(s, owner) : 0;

	if (entry >= STREAM_ENTRIES || s->slots[entry] != CATALOG_NONE)
		return false;
	s->slots[entry] = slot;
	s->ring.left++;
	s->ring.name = catalog_row(&st->catalog, slot)->name;
	st->tensors[slot].ring = &s->ring;
	if (stream_member_state(word) != STREAM_FREE && stream_member_role(word) & STREAM_PRODUCER)
		s->owner[entry] = (uint8_t)owner;
	return true;
}

void stream_row_keep(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	if (!st->tensors[slot].ring || !st->tensors[slot].ring->stream)
		return;
	/* ORDER: the producer reads the version after the ledgers */
	__atomic_store_n(&row->version, 1, __ATOMIC_SEQ_CST);
}

void stream_keep_held(struct state *st, const struct stream *s, const struct client *c)
{
	for (unsigned e = 0; e < STREAM_ENTRIES; e++)
		if (s->slots[e] != CATALOG_NONE && client_leases_on(c, s->slots[e]))
			stream_row_keep(st, s->slots[e]);
}

void streams_keep_held(struct state *st, const struct client *c)
{
	for (uint32_t i = 0; st->rings && i < CATALOG_STREAMS; i++)
		if (st->rings[i] && st->rings[i]->stream)
			stream_keep_held(st, st->rings[i]->stream, c);
}
