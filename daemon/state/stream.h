/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: named sequences of items, which producers publish and subscribers take without the
 * daemon. A stream is a ring of several producers with readers that are known: its page has the
 * order of items, its entry in the catalog the members, and its rows belong to its producers.
 * docs/protocol/streams.md has the steps. stream.c makes streams and members, stream_end.c ends
 * them. Loop thread only.
 */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/ring_page.h"
#include "proto/stream_layout.h"

struct stream_request {
	uint32_t mode, depth, keep, max_tries, flags; /* of a new one */
	uint64_t ttl_ns;
	bool make; /* make one if there is none */
};

/* Finds the stream of that name, or makes it. Returns STATE_E_NOT_FOUND, STATE_E_KIND: the name
 * means a tensor; STATE_E_DENIED, STATE_E_BUCKET, STATE_E_RINGS: all indexes are taken; or as
 * account_take(). */
int stream_find(struct state *st, struct client *c, const struct name_key *key,
		const struct stream_request *rq, struct stream **out);
/* The stream @ref that is not over, or NULL. */
struct stream *stream_of(const struct state *st, uint64_t ref);

/* J1, J2: makes @c a member in @role; a subscriber has its position in @line of its ledger. A
 * client that asks again gets the same member. *@number is the end of the order, or for a
 * subscriber the first item that it takes. STATE_E_MEMBERS: all are taken; STATE_E_INVALID:
 * another member of @c has the line. */
int stream_join(struct state *st, struct client *c, struct stream *s, unsigned role, unsigned line,
		bool kept, uint32_t *member, uint64_t *number);
/* The client of that subscriber, if @asks is a producer of the stream; or NULL. */
const struct client *stream_subscriber(const struct stream *s, const struct client *asks,
				       uint32_t member);
/* Ends the member, whose process goes on. Does nothing if @c is no such member. */
void stream_leave(struct state *st, struct client *c, struct stream *s, uint32_t member);

/* Makes drafts of @c rows of the stream. @entries gets the entry of each. On failure none becomes a
 * row. STATE_E_STALE: one cannot become a row; STATE_E_MEMBERS: too few entries are free. */
int stream_rows(struct state *st, struct client *c, struct stream *s, uint32_t member,
		const uint64_t *refs, unsigned count, uint16_t *entries);
/* Retires rows of @c that clients other than members may hold. They come back as LIVE with the next
 * generation, unless it is @for_good. Refs that are not @c's are ignored. */
void stream_retire(struct state *st, struct client *c, struct stream *s, const uint64_t *refs,
		   unsigned count, bool for_good);
/* To be called when @c is the new connection of a forked child, before it may run on: producers do
 * not read its ledger, so they get back rows that it holds only by RETIRE. */
void streams_keep_held(struct state *st, const struct client *c);

/* The connection of @c is over. Ends its members, which *@budget counts, and then the streams that
 * are bound to it. True: it has no more. */
bool streams_leave(struct state *st, struct client *c, unsigned *budget);
/* Ends its members and the streams that are bound to it, though its connection goes on. */
void streams_unbind(struct state *st, struct client *c);
/* Nobody maps the ledger of @c any more. */
void streams_forget(struct state *st, struct client *c);
/* Ends the stream: its name no longer means it. */
void stream_end(struct state *st, struct account *a, struct stream *s);
/* Ends the streams that have had no member for as long as their ttl says. */
void streams_expire(struct state *st, int64_t now);
/* Continues ends of members and streams that wait for subscribers. True: some are left. */
bool streams_step(struct state *st);

/* ---- stream_stat.c: what monitors see of streams ---- */

/* What its members and its page say, which may be nonsense but for the bounds of wire_stream_info.
 * The length of a broadcast is how far its slowest subscriber is behind. */
struct stream_stat {
	uint64_t number, length, bytes;
	uint32_t rows, producers, subscribers;
	bool ended;
};
struct stream_stat stream_stat(const struct state *st, const struct stream *s);

struct stream_member_stat {
	const struct client *client; /* NULL: its connection has ended */
	uint64_t position, lag;
	uint32_t role, state, pid, held;
};
/* Moves *@member on to the first that is in use, itself included. False: there is none. */
bool stream_next_member(const struct stream *s, uint32_t *member);
struct stream_member_stat stream_member_stat(const struct state *st, const struct stream *s,
					     uint32_t member);

/* ---- stream.c, for stream_end.c and recover/ ---- */

/* Deletes the tensors on GPUs of all rows. To be called before the stream is over. */
void stream_devices_go(struct state *st, const struct stream *s);
/* T1 of a row that does not come back. Also deletes its item's tensor on a GPU. */
void stream_row_retire(struct state *st, struct account *a, struct stream *s, uint32_t slot);
/* Takes the row from its producer, so that it is reclaimed once it is retired. */
void stream_row_orphan(struct state *st, struct stream *s, uint32_t slot);
/* To be called when the stream may have got its first member, or lost its last one. */
void stream_idle(struct state *st, struct stream *s);
/* Marks a stream's row so that it comes back to its producer only by RETIRE, because a ledger that
 * the producer does not read may count it. Does nothing to other rows. */
void stream_row_keep(struct state *st, uint32_t slot);
/* Calls stream_row_keep() for each row that the ledger of @c counts. */
void stream_keep_held(struct state *st, const struct stream *s, const struct client *c);
/* Makes an empty stream of that depth, for one that a former daemon left. */
struct stream *stream_adopted(uint32_t depth);
/* Adds a row that names the stream. False: another row has its entry. */
bool stream_has_row(struct state *st, struct stream *s, uint32_t slot);
/* Gives the member its client. */
void stream_belongs(struct stream *s, struct client *c, uint32_t member);

/* ---- stream_end.c, for recover/ ---- */

/* Takes over the member, whose end may have begun. @c is NULL if its client is not there any more.
 */
void stream_member_adopt(struct state *st, struct stream *s, uint32_t member, struct client *c);
/* Makes streams_step() check the stream. */
void stream_look(struct state *st, struct stream *s);
