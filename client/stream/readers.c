/* SPDX-License-Identifier: Apache-2.0 */
/* The subscribers of a stream, as a producer sees them: their positions and what their ledgers
 * count. */
#include <errno.h>
#include <sys/mman.h>

#include "client/checks.h"
#include "client/connection/answer.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/stream/producer.h"
#include "util/fd.h"

void reader_forget(struct stream_reader *r)
{
	if (r->ledger)
		munmap(r->ledger, r->ledger_size);
	*r = (struct stream_reader){ 0 };
}

/* Finds the position and the counters in a ledger, which has as many slots as ours. */
static void reader_points(const struct tl_stream *s, struct stream_reader *r,
			  const struct ledger *ledger)
{
	uint32_t slots = s->view->session->catalog.slots;

	r->position = &ledger_line(ledger, slots, stream_member_line(r->word))->position;
	r->held = ledger_held(ledger, slots);
}

/* Maps the subscriber's ledger. Returns 0 without a mapping if the subscriber has just ended. */
static int reader_map(struct tl_stream *s, struct stream_reader *r, uint32_t member)
{
	struct session *session = s->view->session;
	struct wire_member_of m = { .header = { .type = WIRE_POSITIONS, .length = sizeof(m) },
				    .stream = s->view->ref,
				    .member = member };
	size_t size = ledger_size(session->catalog.slots);
	struct conn_message answer;
	void *map;
	int e;

	e = session_call(session, &m, session_deadline(session), &answer);
	if (e)
		return e < 0 ? e : stream_why_gone(s->view);
	e = answer_expect(&answer, WIRE_POSITIONS_OF, "finding a subscriber");
	if (e == -ENOENT)
		return 0;
	if (!e && ((const struct wire_positions_of *)(const void *)answer.bytes)->size != size)
		e = tl_fail(-EPROTO, "the daemon sent a ledger of another size");
	if (!e)
		e = descriptor_check_page(answer.fd, size);
	if (!e) {
		map = mmap(NULL, size, PROT_READ, MAP_SHARED, answer.fd, 0);
		if (map == MAP_FAILED)
			e = tl_fail_mmap("mapping the ledger of a subscriber");
		else
			r->ledger = map;
	}
	fd_close(answer.fd);
	r->ledger_size = size;
	if (!e)
		reader_points(s, r, r->ledger);
	return e;
}

/* True if the member is still the same subscriber, whatever its state. */
static bool reader_is(const struct stream_reader *r, uint64_t word, uint32_t generation)
{
	return r->word >> 8 == word >> 8 && r->generation == generation;
}

static int reader_add(struct tl_stream *s, uint32_t member, uint64_t word, uint32_t generation)
{
	struct session *session = s->view->session;
	struct stream_reader *r = &s->readers[member];
	uint32_t client = stream_member_client(word);
	int e = 0;

	r->word = word;
	r->generation = generation;
	r->lossy = stream_member_role(word) & STREAM_LOSSY;
	if (client == (uint32_t)(session->catalog.mine - session->catalog.clients))
		reader_points(s, r, session->ledger);
	else
		e = reader_map(s, r, member);
	if (e || !r->position)
		reader_forget(r);
	if (s->nreaders <= member)
		s->nreaders = member + 1;
	return e;
}

int readers_read(struct tl_stream *s)
{
	const struct catalog_stream *entry = s->view->entry;
	uint32_t changes, high;

	while ((changes = atomic_load(&entry->changes)) != s->changes) {
		high = atomic_load(&entry->high);
		s->room = 0;
		for (uint32_t i = 0;
		     i < STREAM_MEMBERS && i < (high > s->nreaders ? high : s->nreaders); i++) {
			uint64_t word = atomic_load(&entry->members[i].word);
			uint32_t generation = load_once(&entry->members[i].generation);
			bool reads = stream_member_state(word) != STREAM_FREE &&
				     stream_member_role(word) & STREAM_SUBSCRIBER;
			int e = 0;

			if (s->readers[i].word &&
			    (!reads || !reader_is(&s->readers[i], word, generation)))
				reader_forget(&s->readers[i]);
			if (reads && !s->readers[i].word)
				e = reader_add(s, i, word, generation);
			else if (reads)
				s->readers[i].word = word;
			if (e)
				return e;
		}
		s->changes = changes;
	}
	return 0;
}

static bool reader_counts(const struct stream_reader *r)
{
	return r->word && stream_member_state(r->word) == STREAM_LIVE;
}

uint64_t readers_lowest(const struct tl_stream *s, uint32_t *who)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < s->nreaders; i++) {
		const struct stream_reader *r = &s->readers[i];
		uint64_t position;

		if (!reader_counts(r) || r->lossy)
			continue;
		position = atomic_load(r->position);
		if (position < least) {
			least = position;
			*who = i;
		}
	}
	return least;
}

uint64_t readers_lowest_lossy(const struct tl_stream *s)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < s->nreaders; i++) {
		const struct stream_reader *r = &s->readers[i];
		uint64_t position = reader_counts(r) && r->lossy ? atomic_load(r->position)
								 : UINT64_MAX;

		least = position < least ? position : least;
	}
	return least;
}
