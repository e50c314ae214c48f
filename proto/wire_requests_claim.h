/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about claims, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * CLAIM, then the names that the client is going to publish, with a NUL between them. Answer:
 * CLAIMED, or ERROR if it may not claim the first. With WAIT there is one name. UNCLAIM gives up
 * the claims for which the client sent CLAIM with the serial @claim, even if it still waits for
 * that; or its claims on the names that follow. It has no answer, since a claim may not exist any
 * more.
 */
STRUCT(wire_claim)
	HEADER
	FIELD(uint32_t, flags, FLAGS(WIRE_CLAIM_WAIT, "WAIT"))
	FIELD(uint32_t, again, ANY) /* sent again after ADOPTED: the first serial of the request */
	FIELD(uint16_t, names_len, NAMES(1))
	FIELD(uint16_t, reserved, ZERO)
END(wire_claim, 28)
MESSAGE(CLAIM, 27, wire_claim, SERIAL)

STRUCT(wire_unclaim)
	HEADER
	FIELD(uint32_t, claim, ANY) /* 0: a name follows */
	FIELD(uint16_t, names_len, NAMES(0))
	FIELD(uint16_t, reserved, ZERO)
END(wire_unclaim, 24)
MESSAGE(UNCLAIM, 28, wire_unclaim, CHECK(check_unclaim))
/* clang-format on */
