/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption of streams; see recover.h. Members keep publishing and taking items meanwhile. A
 * stream is found by the name that means it, or by its rows if it is over. Members whose clients
 * have ended end now, and ends that had begun are repeated, as in tests/model/stream.pml. Loop
 * thread only.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/recover/recover.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/stream_order.h"
#include "daemon/state/survive.h"
#include "daemon/store/segment.h"

/* Takes over the page of the stream @ref. */
static int stream_take_over(struct state *st, uint64_t ref, struct stream **out)
{
	uint32_t index = ref_slot(ref);
	const struct ring_fact *fact = &st->catalog.facts->rings[index];
	char tag[KEEPER_TAG_SIZE];
	struct stream *s = stream_adopted(fact->owner);
	int r;

	if (!s)
		return -ENOMEM;
	survive_tag(tag, SURVIVOR_PAGE, st->catalog.instance, index, fact->generation);
	s->entry = catalog_stream(&st->catalog, index);
	r = ring_adopt_as(st, index, keeper_link_take(st->common->keeper, tag), &s->ring);
	if (!r)
		*out = s;
	return r;
}

int adopt_streams(struct state *st, uint32_t *index)
{
	struct stream *s;
	int r = 0;

	for (uint32_t i = 0; !r && i < st->catalog.names.high; i++) {
		uint64_t ref = catalog_name(&st->catalog, i)->current;

		*index = ref_slot(ref);
		if (!(ref & REF_STREAM) || !st->names.info[i].pins)
			continue;
		r = stream_take_over(st, ref, &s);
		if (!r)
			s->ring.name = i;
	}
	return r;
}

int adopt_stream_row(struct state *st, uint32_t slot)
{
	uint64_t ref = ring_slot_ring(catalog_row(&st->catalog, slot)->ring);
	struct ring *ring = st->rings ? st->rings[ref_slot(ref)] : NULL;
	struct stream *s = ring ? ring->stream : NULL;
	int r = 0;

	if (!ring) {
		r = stream_take_over(st, ref, &s);
		if (!r)
			s->over = true;
	}
	if (r)
		return r;
	if (!s || ring_ref(&s->ring) != ref || !stream_has_row(st, s, slot))
		return SEGMENT_E_STRANGE;
	return 0;
}

/* Returns that client, or NULL if it has ended. */
static struct client *client_of(const struct state *st, uint32_t index, uint32_t generation)
{
	struct client *c = index < st->catalog.clients.high ? st->served[index] : NULL;

	return c && c->generation == generation ? c : NULL;
}

/* The dead daemon may have changed the table without counting that: makes members read it again. */
static void table_changed(struct stream *s)
{
	for (uint32_t m = 0; m < STREAM_MEMBERS; m++)
		if (stream_member_state(atomic_load(&s->entry->members[m].word)) != STREAM_FREE &&
		    atomic_load(&s->entry->high) <= m)
			atomic_store(&s->entry->high, m + 1);
	atomic_fetch_add(&s->entry->changes, 1);
}

/* Ends the stream if its owner has ended. Its ttl has continued to run meanwhile. */
static void owner_adopt(struct state *st, struct stream *s)
{
	const struct catalog_stream *e = s->entry;

	stream_idle(st, s);
	if (e->flags & STREAM_OWNER_BOUND && !client_of(st, e->owner, e->owner_generation))
		stream_end(st, NULL, s);
}

void adopt_streams_belong(struct state *st)
{
	uint32_t streams = 0;

	for (uint32_t i = 0; st->rings && i < CATALOG_STREAMS; i++) {
		struct stream *s = st->rings[i] ? st->rings[i]->stream : NULL;

		streams += s && !s->over;
		for (uint32_t m = 0; s && !s->over && m < STREAM_MEMBERS; m++) {
			uint64_t word = atomic_load(&s->entry->members[m].word);
			struct client *c = client_of(st, stream_member_client(word),
						     s->entry->members[m].generation);

			if (stream_member_state(word) != STREAM_FREE)
				stream_member_adopt(st, s, m, c);
		}
		if (s && !s->over)
			table_changed(s);
		if (s)
			stream_look(st, s);
		if (s && !s->over)
			owner_adopt(st, s);
	}
	atomic_store(&st->catalog.header->streams, streams);
}
