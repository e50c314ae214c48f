/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about streams, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * OPEN, then the name of a stream: joins it as a producer or as a subscriber, whose position is in
 * @line of the client's ledger and is 0 now. Each member of a client has a line of its own. With
 * MAKE the stream is made if there is none, with this mode and these properties. If there is one,
 * they are not looked at: the client compares them with the catalog's entry. With KEPT a subscriber
 * begins with the items that are kept. With no role it joins nothing. A client that asks again gets
 * the same member. Answer: STREAM.
 */
STRUCT(wire_open)
	HEADER
	FIELD(uint32_t, mode, NUMBER(0, STREAM_QUEUE))
	FIELD(uint32_t, depth, NUMBER(0, STREAM_DEPTH_MAX))
	FIELD(uint32_t, keep, NUMBER(0, STREAM_DEPTH_MAX))
	FIELD(uint32_t, max_tries, NUMBER(0, STREAM_TRIES_MAX))
	FIELD(uint32_t, properties, FLAGS(STREAM_DROPS_OLDEST | STREAM_OWNER_BOUND | STREAM_SHARED, "DROPS_OLDEST", "OWNER_BOUND", "SHARED"))
	FIELD(uint32_t, flags, FLAGS(WIRE_OPEN_MAKE | WIRE_OPEN_KEPT, "MAKE", "KEPT"))
	FIELD(uint32_t, role, FLAGS(STREAM_PRODUCER | STREAM_SUBSCRIBER | STREAM_LOSSY, "PRODUCER", "SUBSCRIBER", "LOSSY"))
	FIELD(uint16_t, line, NUMBER(0, LEDGER_LINES - 1))
	FIELD(uint16_t, name_len, NAME(1))
	FIELD(uint64_t, ttl_ns, NUMBER(0, TENSOR_TTL_MAX)) /* from its last member's end on; 0: for ever */
END(wire_open, 56)
MESSAGE(OPEN, 40, wire_open, SERIAL, CHECK(check_open))

/* LEAVE: the client is this member of the stream no more. Answer: DONE. */
STRUCT(wire_member_of)
	HEADER
	FIELD(uint64_t, stream, HEX)
	FIELD(uint32_t, member, NUMBER(0, STREAM_MEMBERS - 1))
	FIELD(uint32_t, reserved, ZERO)
END(wire_member_of, 32)
MESSAGE(LEAVE, 41, wire_member_of, SERIAL)

/* ROWS makes drafts, whose refs follow, rows of the stream. Answer: ENTRIES. An ERROR leaves them
 * drafts. */
STRUCT(wire_rows)
	HEADER
	FIELD(uint64_t, stream, HEX)
	FIELD(uint32_t, member, NUMBER(0, STREAM_MEMBERS - 1))
	FIELD(uint32_t, count, NUMBER(1, STREAM_ROWS_MAX), .unit = 8)
END(wire_rows, 32)
MESSAGE(ROWS, 42, wire_rows, SERIAL)

/* POSITIONS asks for the ledger of that subscriber, for reading. Answer: POSITIONS_OF, or ERROR
 * NOT_FOUND: there is no such subscriber any more, or the client is no producer of the stream. */
MESSAGE(POSITIONS, 43, wire_member_of, SERIAL)

/* STREAMS asks for the first stream with an index of @from or more or, if a name follows, for the
 * stream of that name. Answer: STREAM_INFO; DONE: there is none; or an ERROR about the name. */
STRUCT(wire_streams)
	HEADER
	FIELD(uint32_t, from, NUMBER(0, CATALOG_STREAMS))
	FIELD(uint16_t, reserved, ZERO)
	FIELD(uint16_t, name_len, NAME(0))
END(wire_streams, 24)
MESSAGE(STREAMS, 44, wire_streams, SERIAL)

/* STREAM_MEMBERS asks for the first member of the stream with an index of @member or more. Answer:
 * STREAM_MEMBER; DONE: there is none. */
MESSAGE(STREAM_MEMBERS, 45, wire_member_of, SERIAL)
/* clang-format on */
