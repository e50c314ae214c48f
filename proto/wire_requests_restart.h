/* SPDX-License-Identifier: Apache-2.0 */
/* The request for another daemon. See wire_messages.h for how this is written. */
/* clang-format off */

/*
 * RESTART asks for another daemon, if this one is the @restarts-th that has taken over, as the
 * catalog says: who asks again, since nobody answered, asks for one only. Answer: DONE, after which
 * this daemon ends.
 */
STRUCT(wire_restart)
	HEADER
	FIELD(uint64_t, restarts, ANY)
END(wire_restart, 24)
MESSAGE(RESTART, 29, wire_restart, SERIAL)
/* clang-format on */
