/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of streams: OPEN, LEAVE, ROWS, POSITIONS, STREAMS, STREAM_MEMBERS. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/reply.h"
#include "daemon/state/catalog.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/store/memfd.h"
#include "tensor/name.h"

/* ---- OPEN ------------------------------------------------------------------------------------ */

static void send_open_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r)
{
	int len = (int)name->len;

	switch (r) {
	case STATE_E_NOT_FOUND:
		peer_error(peer, serial, WIRE_E_NOT_FOUND, "no stream is called '%.*s'", len,
			   name->text);
		break;
	case STATE_E_RINGS:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "'%.*s': all %d streams of the namespace, or this user's half of them, "
			   "are in use",
			   len, name->text, CATALOG_STREAMS);
		break;
	case STATE_E_MEMBERS:
		peer_error(peer, serial, WIRE_E_LIMIT, "'%.*s' has its maximum of %d members", len,
			   name->text, STREAM_MEMBERS);
		break;
	case STATE_E_INVALID:
		peer_error(peer, serial, WIRE_E_INVALID,
			   "'%.*s': another member of this client has that line of the ledger", len,
			   name->text);
		break;
	case STATE_E_KIND:
		send_name_error(peer, serial, name, r, "means a tensor, not a stream");
		break;
	default:
		send_name_error(peer, serial, name, r, NULL);
	}
}

static void send_stream(struct peer *peer, uint32_t serial, struct stream *s, uint32_t member,
			uint64_t number)
{
	struct wire_stream m = {
		.header = { .type = WIRE_STREAM, .length = sizeof(m), .serial = serial },
		.stream = ring_ref(&s->ring),
		.number = number,
		.member = member
	};
	int fd = -1, r;

	r = storage_memfd.open(&s->ring.object, O_RDWR, &fd);
	if (r)
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "cannot open the page of a stream: %s", strerror(-r));
	else
		peer_send(peer, &m, fd);
}

void handle_open(struct peer *peer, struct conn_message *m)
{
	const struct wire_open *open = AS(wire_open, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*open)),
					open->name_len);
	struct stream_request rq = { .mode = open->mode,
				     .depth = open->depth,
				     .keep = open->keep,
				     .max_tries = open->max_tries,
				     .flags = open->properties,
				     .ttl_ns = open->ttl_ns,
				     .make = open->flags & WIRE_OPEN_MAKE };
	uint32_t member = STREAM_MEMBERS;
	struct stream *s = NULL;
	uint64_t number = 0;
	const char *why;
	int r;

	if (tensor_name_check(name.text, name.len, &why)) {
		send_name_error(peer, open->header.serial, &name, STATE_E_INVALID, why);
		return;
	}
	r = stream_find(peer->state, &peer->client, &name, &rq, &s);
	if (!r && open->role)
		r = stream_join(peer->state, &peer->client, s, open->role, open->line,
				open->flags & WIRE_OPEN_KEPT, &member, &number);
	if (r)
		send_open_error(peer, open->header.serial, &name, r);
	else
		send_stream(peer, open->header.serial, s, member, number);
}

/* ---- members -------------------------------------------------------------------------------- */

static void send_no_stream(struct peer *peer, uint32_t serial)
{
	peer_error(peer, serial, WIRE_E_STALE, "there is no such stream any more");
}

void handle_leave(struct peer *peer, struct conn_message *m)
{
	const struct wire_member_of *leave = AS(wire_member_of, m);
	struct stream *s = stream_of(peer->state, leave->stream);

	if (s)
		stream_leave(peer->state, &peer->client, s, leave->member);
	send_done(peer, leave->header.serial);
}

void handle_rows(struct peer *peer, struct conn_message *m)
{
	const struct wire_rows *rows = AS(wire_rows, m);
	const uint64_t *refs = (const uint64_t *)(const void *)wire_tail(m->bytes, sizeof(*rows));
	struct stream *s = stream_of(peer->state, rows->stream);
	uint16_t entries[STREAM_ROWS_MAX];
	struct {
		struct wire_entries m;
		uint64_t entries[STREAM_ROWS_MAX];
	} answer = { .m = { .header = { .type = WIRE_ENTRIES, .serial = rows->header.serial },
			    .stream = rows->stream,
			    .count = rows->count } };
	int r;

	if (!s) {
		send_no_stream(peer, rows->header.serial);
		return;
	}
	r = stream_rows(peer->state, &peer->client, s, rows->member, refs, rows->count, entries);
	if (r == STATE_E_MEMBERS)
		peer_error(peer, rows->header.serial, WIRE_E_LIMIT,
			   "the stream has its maximum of %d rows", STREAM_ENTRIES);
	else if (r)
		peer_error(peer, rows->header.serial, WIRE_E_STALE,
			   "these are not drafts of this client that may be rows of the stream");
	if (r)
		return;
	for (unsigned i = 0; i < rows->count; i++)
		answer.entries[i] = entries[i];
	answer.m.header.length = (uint32_t)(sizeof(answer.m) +
					    rows->count * sizeof(*answer.entries));
	peer_send(peer, &answer, -1);
}

void handle_positions(struct peer *peer, struct conn_message *m)
{
	const struct wire_member_of *ask = AS(wire_member_of, m);
	const struct stream *s = stream_of(peer->state, ask->stream);
	const struct client *c = s ? stream_subscriber(s, &peer->client, ask->member) : NULL;
	struct wire_positions_of answer = { .header = { .type = WIRE_POSITIONS_OF,
							.length = sizeof(answer),
							.serial = ask->header.serial } };
	int fd = -1, r;

	if (!c) {
		peer_error(peer, ask->header.serial, WIRE_E_NOT_FOUND,
			   "the stream has no such subscriber");
		return;
	}
	r = storage_memfd.open(&(struct object){ .fd = c->ledger_fd }, O_RDONLY, &fd);
	answer.size = c->ledger_size;
	if (r)
		peer_error(peer, ask->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot open a ledger: %s", strerror(-r));
	else
		peer_send(peer, &answer, fd);
}

/* ---- who looks at streams ------------------------------------------------------------------- */

/* Whoever may read the namespace sees its streams, as it sees its tensors, clients and holdings. */

static void send_stream_info(struct peer *peer, uint32_t serial, const struct stream *s)
{
	const struct state *st = peer->state;
	const struct stream_stat stat = stream_stat(st, s);
	struct {
		struct wire_stream_info info;
		char name[TENSOR_NAME_MAX + 1];
	} m = { .info = { .header = { .type = WIRE_STREAM_INFO, .serial = serial },
			  .stream = ring_ref(&s->ring),
			  .number = stat.number,
			  .length = stat.length,
			  .created_ns = s->entry->created_ns,
			  .bytes = stat.bytes,
			  .ttl_ns = s->entry->ttl_ns,
			  .rows = stat.rows,
			  .uid = st->names.info[s->ring.name].uid,
			  .mode = s->entry->mode,
			  .depth = s->entry->depth,
			  .keep = s->entry->keep,
			  .max_tries = s->entry->max_tries,
			  .properties = s->entry->flags,
			  .producers = stat.producers,
			  .subscribers = stat.subscribers,
			  .ended = stat.ended } };

	m.info.name_len = name_text(&st->names, s->ring.name, m.name);
	m.info.header.length = (uint32_t)sizeof(m.info) + m.info.name_len;
	peer_send(peer, &m, -1);
}

/* The first stream with that index or a higher one, or NULL. */
static const struct stream *stream_from(const struct state *st, uint32_t index)
{
	for (; st->rings && index < CATALOG_STREAMS; index++) {
		const struct ring *ring = st->rings[index];

		if (ring && ring->stream && !ring->stream->over)
			return ring->stream;
	}
	return NULL;
}

void handle_streams(struct peer *peer, struct conn_message *m)
{
	const struct wire_streams *ask = AS(wire_streams, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*ask)),
					ask->name_len);
	const struct stream *s;
	uint32_t index;
	uint64_t current;

	if (!name.len) {
		s = stream_from(peer->state, ask->from);
		if (s)
			send_stream_info(peer, ask->header.serial, s);
		else
			send_done(peer, ask->header.serial);
		return;
	}
	index = name_find(&peer->state->names, &name);
	current = index == CATALOG_NONE ? 0 : catalog_name(&peer->state->catalog, index)->current;
	s = stream_of(peer->state, current);
	if (s)
		send_stream_info(peer, ask->header.serial, s);
	else if (current)
		send_name_error(peer, ask->header.serial, &name, STATE_E_KIND,
				"means a tensor, not a stream");
	else
		send_open_error(peer, ask->header.serial, &name, STATE_E_NOT_FOUND);
}

void handle_stream_members(struct peer *peer, struct conn_message *m)
{
	const struct wire_member_of *ask = AS(wire_member_of, m);
	const struct stream *s = stream_of(peer->state, ask->stream);
	struct wire_stream_member answer = { .header = { .type = WIRE_STREAM_MEMBER,
							 .length = sizeof(answer),
							 .serial = ask->header.serial },
					     .member = ask->member };
	struct stream_member_stat stat;

	if (!s) {
		send_no_stream(peer, ask->header.serial);
		return;
	}
	if (!stream_next_member(s, &answer.member)) {
		send_done(peer, ask->header.serial);
		return;
	}
	stat = stream_member_stat(peer->state, s, answer.member);
	answer.position = stat.position;
	answer.lag = stat.lag;
	answer.role = stat.role;
	answer.state = stat.state;
	answer.pid = stat.pid;
	answer.held = stat.held;
	answer.uid = peer->state->names.info[s->ring.name].uid;
	if (stat.client) {
		answer.client = stat.client->id;
		answer.uid = stat.client->uid;
		memcpy(answer.label, stat.client->label, sizeof(answer.label));
	}
	peer_send(peer, &answer, -1);
}
