/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of streams: OPEN, LEAVE, ROWS, POSITIONS. */
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
		send_name_error(peer, serial, name, r,
				"means a tensor, or is a stream of the other mode");
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
