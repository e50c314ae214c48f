/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about watches, in the notation of wire_messages.h. */
/* clang-format off */

/* WATCH, then a name or, with PREFIX, the beginning of names: changes of these names' meanings are
 * to be noted for this client. With HINT the client can do without, and half of all watches, and of
 * its user's, are left for others. Answer: WATCHED, or ERROR LIMIT, QUOTA. */
STRUCT(wire_watch)
	HEADER
	FIELD(uint32_t, flags, FLAGS(WIRE_WATCH_PREFIX | WIRE_WATCH_HINT, "PREFIX", "HINT"))
	FIELD(uint16_t, name_len, NAME(0))
	FIELD(uint16_t, reserved, ZERO)
END(wire_watch, 24)
MESSAGE(WATCH, 36, wire_watch, SERIAL, CHECK(check_watch))

/* UNWATCH ends one watch of the client on that entry. No answer. */
STRUCT(wire_watch_ref) /* an entry of the catalog's watches, with its generation */
	HEADER
	FIELD(uint32_t, watch, NUMBER(0, CATALOG_WATCHES - 1))
	FIELD(uint32_t, generation, ANY)
END(wire_watch_ref, 24)
MESSAGE(UNWATCH, 37, wire_watch_ref)
/* clang-format on */
