/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about rings. See wire_messages.h for how this is written. */
/* clang-format off */

/*
 * RING publishes the draft @ref as COMMIT does, and asks that it become the first slot of a ring of
 * that name; the others are the @count drafts whose refs follow after all else. Answer: GRANTED with
 * the page's descriptor, or COMMITTED: the draft is published, there is no ring, and the others are
 * drafts still.
 */
STRUCT(wire_ring)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(struct wire_description, tensor, MEMBERS(wire_description))
	FIELD(uint32_t, count, NUMBER(RING_SLOTS_MIN - 1, RING_SLOTS_MAX - 1), .unit = 8)
	FIELD(uint32_t, reserved, ZERO)
END(wire_ring, 56)
MESSAGE(RING, 32, wire_ring, SERIAL)

/* RETIRE: the name of @ring means those tensors no more, whose refs follow. No answer. */
STRUCT(wire_retire)
	HEADER
	FIELD(uint64_t, ring, HEX)
	FIELD(uint32_t, count, NUMBER(1, RING_REFS_MAX), .unit = 8)
	FIELD(uint32_t, reserved, ZERO)
END(wire_retire, 32)
MESSAGE(RETIRE, 33, wire_retire)

/* PAGE asks for the page of a ring. Answer: PAGE_OF, or ERROR NOT_FOUND: it is over. */
STRUCT(wire_ring_ref)
	HEADER
	FIELD(uint64_t, ring, HEX)
END(wire_ring_ref, 24)
MESSAGE(PAGE, 34, wire_ring_ref, SERIAL)

/* SLEEP: the client is going to sleep on the word of that page. Answer: DONE. */
MESSAGE(SLEEP, 35, wire_ring_ref, SERIAL)
/* clang-format on */
