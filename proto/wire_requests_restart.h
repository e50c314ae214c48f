/* SPDX-License-Identifier: Apache-2.0 */
/* The request for another daemon, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * RESTART asks for another daemon, if this one is the @restarts-th that has taken over, by the
 * catalog. So a client that repeats an unanswered request asks for one daemon only. Answer: DONE,
 * after which this daemon ends.
 */
STRUCT(wire_restart)
	HEADER
	FIELD(uint64_t, restarts, ANY)
END(wire_restart, 24)
MESSAGE(RESTART, 29, wire_restart, SERIAL)
/* clang-format on */
