/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about rings, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * RING publishes the draft @ref as COMMIT does, and asks to make it the first slot of a ring of
 * that name. The refs of the other slots, @count drafts, follow at the end. Answer: GRANTED with
 * the page's descriptor, or COMMITTED: the draft is published, there is no ring, and the others are
 * still drafts. After an ERROR it is one too.
 */
STRUCT(wire_ring)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(struct wire_description, tensor, MEMBERS(wire_description))
	FIELD(uint32_t, count, NUMBER(RING_SLOTS_MIN - 1, RING_SLOTS_MAX - 1), .unit = 8)
	FIELD(uint32_t, reserved, ZERO)
END(wire_ring, 64)
MESSAGE(RING, 32, wire_ring, SERIAL)

/* RETIRE: the name of @ring does not mean the tensors any more whose refs follow. FOR_GOOD: of a
 * stream, which loses these rows. No answer. */
STRUCT(wire_retire)
	HEADER
	FIELD(uint64_t, ring, HEX)
	FIELD(uint32_t, count, NUMBER(1, RING_REFS_MAX), .unit = 8)
	FIELD(uint32_t, flags, FLAGS(WIRE_RETIRE_FOR_GOOD, "FOR_GOOD"))
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

/* 38 was FENCE's. */

/* UNBIND: the client is closed and reads no more answers. What is bound to the connection ends now:
 * its claims, watches and tensors, creates that wait, and drafts that its ledger does not count.
 * The connection goes on for what its process still holds. No answer. */
MESSAGE(UNBIND, 39, wire_plain)
/* clang-format on */
