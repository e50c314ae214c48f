/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that hand a tensor on, in the notation of wire_messages.h. */
/* clang-format off */

/*
 * HANDOVER keeps a tensor on which the client's ledger shows a lease until it is received, until
 * @ttl_ns have passed, or until the client's connection ends. @id is a random number of the
 * client's. Answer: DONE, or STALE.
 */
STRUCT(wire_handover)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint64_t, id, HEX)
	FIELD(uint64_t, ttl_ns, NUMBER(0, TENSOR_TTL_MAX)) /* 0: for ever */
END(wire_handover, 40)
MESSAGE(HANDOVER, 46, wire_handover, SERIAL)

/*
 * RECEIVE ends that handover. The client's ledger shows a lease on the tensor, and its segment as
 * mapped; the lease counts from the answer on. Answer: DONE, or NOT_FOUND: there is no such
 * handover, and nobody else holds the tensor. The client that handed it on may send this without a
 * lease, to take it back.
 */
STRUCT(wire_receive)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint64_t, id, HEX)
END(wire_receive, 32)
MESSAGE(RECEIVE, 47, wire_receive, SERIAL)
/* clang-format on */
