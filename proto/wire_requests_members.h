/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about many members of a group at once, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * MEMBERS, then @count messages of the types MEMBER and PLACE, each at a multiple of 8 bytes, makes
 * hidden tensors of the group of the draft @ref. A MEMBER lies in the draft's memory, a PLACE in a
 * segment on a device. Answer: MEMBERS_MADE, or ERROR if one cannot be made; then the group cannot
 * be published either.
 */
STRUCT(wire_members)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint32_t, count, NUMBER(1, WIRE_MEMBERS_MAX))
	FIELD(uint32_t, size, MESSAGES) /* bytes of the messages */
END(wire_members, 32)
MESSAGE(MEMBERS, 30, wire_members, SERIAL, OF_MESSAGES)

/* RESUMED tells that the client has read ADOPTED, and has counted in its ledger all earlier drafts
 * that it uses. The daemon may take back the others. There is no answer. */
MESSAGE(RESUMED, 31, wire_plain)
/* clang-format on */
