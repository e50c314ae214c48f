/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of administrators, in the notation of wire_messages.h. */
/* clang-format off */

/* KICK ends the connection of one client of @uid: the first one, other than the sender, with an id
 * above @after and up to @until. Answer: KICKED, or DONE: there is none. */
STRUCT(wire_kick)
	HEADER
	FIELD(uint64_t, after, ANY)
	FIELD(uint64_t, until, ANY)
	FIELD(uint32_t, uid, ANY) /* UINT32_MAX: anybody's */
	FIELD(uint32_t, reserved, ZERO)
END(wire_kick, 40)
MESSAGE(KICK, 25, wire_kick, SERIAL)

/* USERS asks for the user with the lowest uid from @from on that uses anything, or, with EXACT, for
 * the user @from, where UINT32_MAX is the client's own. Answer: USER, or DONE: there is none that
 * this client may see. */
STRUCT(wire_users)
	HEADER
	FIELD(uint64_t, from, NUMBER(0, 1ULL << 32))
	FIELD(uint32_t, flags, FLAGS(WIRE_USERS_EXACT, "EXACT"))
	FIELD(uint32_t, reserved, ZERO)
END(wire_users, 32)
MESSAGE(USERS, 26, wire_users, SERIAL)
/* clang-format on */
