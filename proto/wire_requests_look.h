/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that show what the daemon does, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * READERS asks which clients hold which tensors: those of the client @id from the slot @slot on,
 * then those of the clients with higher ids. Answer: HELD, or DONE: there is no more.
 */
STRUCT(wire_readers)
	HEADER
	FIELD(uint64_t, id, ANY)
	FIELD(uint32_t, slot, ANY)
	FIELD(uint32_t, reserved, ZERO)
END(wire_readers, 32)
MESSAGE(READERS, 48, wire_readers, SERIAL)

/* METRICS asks for the daemon's metrics. Answer: METRICS_ARE, or ERROR DENIED. */
MESSAGE(METRICS, 49, wire_plain, SERIAL)
/* clang-format on */
