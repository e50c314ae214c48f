/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a stream; see stream.h. */
#include "daemon/state/catalog.h"
#include "daemon/state/stream.h"
#include "daemon/state/stream_order.h"

static uint64_t member_word(const struct stream *s, uint32_t member)
{
	return atomic_load(&s->entry->members[member].word);
}

bool stream_next_member(const struct stream *s, uint32_t *member)
{
	while (*member < STREAM_MEMBERS &&
	       stream_member_state(member_word(s, *member)) == STREAM_FREE)
		++*member;
	return *member < STREAM_MEMBERS;
}

/* How far a subscriber at that position is behind. A new one without a position holds up all. */
static uint64_t lag_of(const struct stream *s, uint64_t position, uint64_t end)
{
	if (!position)
		return s->entry->depth;
	return position < end ? end - position : 0;
}

struct stream_stat stream_stat(const struct state *st, const struct stream *s)
{
	struct stream_stat stat = { .number = stream_order_end(s) };

	stat.ended = stream_order_is_closed(s, stat.number);
	for (uint32_t i = 0; stream_next_member(s, &i); i++) {
		uint64_t word = member_word(s, i), lag;

		if (stream_member_state(word) != STREAM_LIVE)
			continue;
		if (stream_member_role(word) & STREAM_PRODUCER) {
			stat.producers++;
			continue;
		}
		stat.subscribers++;
		lag = lag_of(s, stream_position(s, i, word), stat.number);
		if (!(stream_member_role(word) & STREAM_LOSSY) && lag > stat.length)
			stat.length = lag;
	}
	if (s->entry->mode == STREAM_QUEUE)
		stat.length = stream_order_open(s, stat.number);
	for (unsigned e = 0; e < STREAM_ENTRIES; e++) {
		if (s->slots[e] == CATALOG_NONE)
			continue;
		stat.rows++;
		stat.bytes += catalog_row(&st->catalog, s->slots[e])->nbytes;
	}
	return stat;
}

/* Counts the rows of a producer, or the rows whose items the subscriber's client holds. If that
 * client is a producer, too, its ledger also counts each of its own rows once. */
static uint32_t rows_held(const struct state *st, const struct stream *s, uint32_t member,
			  bool produces)
{
	const struct client *c = s->members[member].client;
	uint32_t n = 0;

	for (unsigned e = 0; e < STREAM_ENTRIES; e++) {
		uint32_t slot = s->slots[e], owner = s->owner[e];
		bool own = owner != STREAM_NO_OWNER && s->members[owner].client == c;

		if (slot == CATALOG_NONE)
			continue;
		if (produces)
			n += owner == member;
		else if (c)
			n += client_leases_on(c, slot) >
			     (own && !catalog_row(&st->catalog, slot)->version);
	}
	return n;
}

struct stream_member_stat stream_member_stat(const struct state *st, const struct stream *s,
					     uint32_t member)
{
	uint64_t word = member_word(s, member);
	struct stream_member_stat stat = { .client = s->members[member].client,
					   .role = stream_member_role(word),
					   .state = stream_member_state(word),
					   .pid = s->entry->members[member].pid };
	bool produces = stat.role & STREAM_PRODUCER;

	if (!produces)
		stat.position = stream_position(s, member, word);
	if (!produces && s->entry->mode != STREAM_QUEUE)
		stat.lag = lag_of(s, stat.position, stream_order_end(s));
	stat.held = rows_held(st, s, member, produces);
	return stat;
}
