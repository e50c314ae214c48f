/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of members and of streams. What cannot be done yet, since a subscriber has still to pass
 * something, is done by streams_step(), which serve/ calls from time to time.
 *
 * ORDER: D1 changes a member's state before D2 reads the take words, and before the ledger's counts
 * are read; a subscriber writes its count, then reads its state (S4). E1 changes a producer's state
 * before E2 changes the word that its next item would get; the producer reads its state, then
 * changes that word (P2). All are seq_cst. tests/model/stream.pml checks them.
 */
#include <string.h>

#include "daemon/state/lease.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/stream_order.h"

static struct stream_member *entry_of(const struct stream *s, uint32_t member)
{
	return &s->entry->members[member];
}

static void member_state(struct state *st, struct stream *s, uint32_t member,
			 enum stream_state state)
{
	uint64_t word = atomic_load(&entry_of(s, member)->word) & ~(uint64_t)255;

	atomic_store(&entry_of(s, member)->word, state == STREAM_FREE ? 0 : word | state);
	atomic_fetch_add(&s->entry->changes, 1);
	if (state == STREAM_FREE)
		stream_idle(st, s);
}

void stream_look(struct state *st, struct stream *s)
{
	if (list_empty(&s->due))
		list_add_tail(&st->streams_due, &s->due);
	if (list_empty(&st->streaming))
		list_add_tail(&st->common->streaming, &st->streaming);
}

/* Retires the rows without a producer whose items nobody will take. True: some rows are left. */
static bool rows_go(struct state *st, struct account *a, struct stream *s)
{
	bool left = false;

	for (unsigned e = 0; e < STREAM_ENTRIES; e++) {
		uint32_t slot = s->slots[e];

		if (slot == CATALOG_NONE || s->owner[e] != STREAM_NO_OWNER ||
		    row_word_state(catalog_row(&st->catalog, slot)->word) != ROW_LIVE)
			continue;
		if (!s->over && !stream_entry_is_passed(s, e))
			left = true;
		else
			stream_row_retire(st, a ? a : st->tensors[slot].account, s, slot);
	}
	return left;
}

static void rows_orphan(struct state *st, struct stream *s, uint32_t member)
{
	for (unsigned e = 0; e < STREAM_ENTRIES; e++)
		if (s->owner[e] == member)
			stream_row_orphan(st, s, s->slots[e]);
}

/* E1; streams_step() does the rest. */
static void producer_end(struct state *st, struct stream *s, uint32_t member)
{
	member_state(st, s, member, STREAM_GONE); /* E1 */
	stream_look(st, s);
}

/* E2 and E3. Until then the producer may publish its last item, if it lives. */
static bool producer_ended(struct state *st, struct stream *s, uint32_t member)
{
	if (!stream_order_append(s, STREAM_ENDED + member))
		return false;
	stream_ring(s);
	rows_orphan(st, s, member);
	member_state(st, s, member, STREAM_FREE);
	return true;
}

/* D1 to D3. */
static void subscriber_end(struct state *st, struct stream *s, uint32_t member)
{
	member_state(st, s, member, STREAM_GONE); /* D1 */
	if (s->entry->mode == STREAM_QUEUE)
		stream_reopen(s, member); /* D2 */
	stream_bits_clear(s, member);
	stream_make_room(s); /* D3 */
	stream_ring(s);
	stream_look(st, s);
}

static uint32_t index_of(const struct stream_membership *m)
{
	return (uint32_t)(m - m->stream->members);
}

static bool is_producer(const struct stream_membership *m)
{
	return stream_member_role(atomic_load(&entry_of(m->stream, index_of(m))->word)) &
	       STREAM_PRODUCER;
}

static enum stream_state state_of(const struct stream_membership *m)
{
	return stream_member_state(atomic_load(&entry_of(m->stream, index_of(m))->word));
}

static void member_unlink(struct client *c, struct stream_membership *m)
{
	c->membership_count--;
	m->client = NULL;
	list_del(&m->of_client);
}

void stream_leave(struct state *st, struct client *c, struct stream *s, uint32_t member)
{
	struct stream_membership *m = &s->members[member < STREAM_MEMBERS ? member : 0];

	if (member >= STREAM_MEMBERS || m->client != c)
		return;
	/* if a former daemon died at this, the member is GONE: all steps are repeated */
	if (is_producer(m)) {
		producer_end(st, s, member);
	} else {
		subscriber_end(st, s, member);
		stream_keep_held(st, s, c);
		member_state(st, s, member, STREAM_FREE);
	}
	member_unlink(c, m);
	streams_step(st);
}

static bool is_bound_to(const struct stream *s, const struct client *c)
{
	return s->entry->flags & STREAM_OWNER_BOUND && s->entry->owner == c->index &&
	       s->entry->owner_generation == c->generation;
}

static void bound_end(struct state *st, struct client *c)
{
	for (uint32_t i = 0; st->rings && i < CATALOG_STREAMS; i++) {
		struct stream *s = st->rings[i] ? st->rings[i]->stream : NULL;

		if (s && !s->over && is_bound_to(s, c))
			stream_end(st, c->account, s);
	}
}

void streams_unbind(struct state *st, struct client *c)
{
	while (!list_empty(&c->memberships)) {
		struct stream_membership *m = list_first_entry(&c->memberships,
							       struct stream_membership, of_client);

		stream_leave(st, c, m->stream, index_of(m));
	}
	bound_end(st, c);
}

void streams_expire(struct state *st, int64_t now)
{
	struct heap *ends = &st->lifetimes.streams;

	while (ends->top && (int64_t)ends->top->key <= now)
		stream_end(st, NULL, container_of(ends->top, struct stream, idle));
}

bool streams_leave(struct state *st, struct client *c, unsigned *budget)
{
	struct stream_membership *m;

	list_for_each_entry(m, &c->memberships, of_client) {
		if (state_of(m) != STREAM_LIVE)
			continue;
		if (!*budget)
			return false;
		--*budget;
		if (is_producer(m))
			producer_end(st, m->stream, index_of(m));
		else
			subscriber_end(st, m->stream, index_of(m));
	}
	if (!list_empty(&c->memberships))
		streams_step(st);
	bound_end(st, c);
	return true;
}

void streams_forget(struct state *st, struct client *c)
{
	while (!list_empty(&c->memberships)) {
		struct stream_membership *m = list_first_entry(&c->memberships,
							       struct stream_membership, of_client);
		struct stream *s = m->stream;

		if (!is_producer(m) && state_of(m) == STREAM_GONE) {
			if (s->entry->mode == STREAM_QUEUE) /* D4 */
				subscriber_end(st, s, index_of(m));
			member_state(st, s, index_of(m), STREAM_FREE);
			stream_make_room(s);
		}
		member_unlink(c, m);
		stream_look(st, s);
	}
}

void stream_member_adopt(struct state *st, struct stream *s, uint32_t member, struct client *c)
{
	uint64_t word = atomic_load(&entry_of(s, member)->word);
	bool produces = stream_member_role(word) & STREAM_PRODUCER;
	bool over = !c || stream_member_state(word) == STREAM_GONE;

	if (c && !(produces && over))
		stream_belongs(s, c, member);
	if (over && produces)
		producer_end(st, s, member);
	else if (over)
		subscriber_end(st, s, member);
	if (!c && !produces)
		member_state(st, s, member, STREAM_FREE);
}

static bool members_go(struct state *st, struct stream *s)
{
	bool left = false;

	for (uint32_t i = 0; i < STREAM_MEMBERS; i++) {
		uint64_t word = atomic_load(&entry_of(s, i)->word);

		if (stream_member_state(word) == STREAM_GONE &&
		    stream_member_role(word) & STREAM_PRODUCER && !producer_ended(st, s, i))
			left = true;
	}
	return left;
}

bool streams_step(struct state *st)
{
	list_for_each_safe(l, &st->streams_due) {
		struct stream *s = list_entry(l, struct stream, due);
		bool left = !s->over && members_go(st, s);

		s->ring.left++; /* keeps the stream during this step */
		left |= rows_go(st, NULL, s);
		if (!left)
			list_del(&s->due);
		if (--s->ring.left == 0 && s->over)
			ring_free(st, &s->ring);
	}
	if (list_empty(&st->streams_due))
		list_del(&st->streaming);
	return !list_empty(&st->streams_due);
}

void stream_end(struct state *st, struct account *a, struct stream *s)
{
	uint32_t name = s->ring.name;

	stream_devices_go(st, s);
	s->over = true;
	stream_idle(st, s);
	atomic_store(&s->entry->ref, 0);
	atomic_store(&catalog_name(&st->catalog, name)->current, 0);
	atomic_fetch_sub(&st->catalog.header->streams, 1);
	for (uint32_t i = 0; i < STREAM_MEMBERS; i++)
		if (s->members[i].client)
			member_unlink(s->members[i].client, &s->members[i]);
	memset(s->owner, STREAM_NO_OWNER, sizeof(s->owner));
	list_del(&s->due);
	s->ring.left++;
	stream_ring(s);
	stream_make_room(s);
	rows_go(st, a, s);
	name_unpin(&st->names, name);
	if (--s->ring.left == 0)
		ring_free(st, &s->ring);
}
