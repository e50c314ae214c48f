/* SPDX-License-Identifier: Apache-2.0 */
/* The messages from a client to the daemon, in the notation of wire_messages.h. */
/* clang-format off */

/* HELLO, the first message. Answer: WELCOME with one descriptor (the catalog, read-only). */
STRUCT(wire_hello)
	HEADER
	FIELD(uint16_t, version_min, NUMBER(1, UINT16_MAX))
	FIELD(uint16_t, version_max, ANY)
	FIELD(uint16_t, namespace_len, NAMESPACE) /* 0: the default namespace */
	FIELD(uint16_t, reserved, ZERO)
	ARRAY(char, label, WIRE_LABEL_MAX, LABEL) /* the client's own name */
END(wire_hello, 56)
MESSAGE(HELLO, 1, wire_hello, SERIAL, CHECK(check_hello))

/* LEDGER, the second message. Answer: READY. */
STRUCT(wire_ledger)
	HEADER
	FIELD(uint64_t, size, ANY) /* ledger_size() */
	FIELD(uint64_t, layout, HEX)
END(wire_ledger, 32)
MESSAGE(LEDGER, 2, wire_ledger, SERIAL, WITH_FD, CHECK(check_ledger))

/* CREATE, then a name, which may be empty. Answer: DRAFT. */
STRUCT(wire_create)
	HEADER
	FIELD(uint64_t, nbytes, ANY)
	FIELD(int64_t, timeout_ns, SIGNED) /* how long to wait for space; < 0: for ever */
	FIELD(uint32_t, flags, FLAGS(WIRE_CREATE_PREFETCH | WIRE_CREATE_OWN_PAGES, "PREFETCH", "OWN_PAGES"))
	FIELD(uint32_t, extra, NUMBER(0, WIRE_EXTRA_MAX)) /* row_extra() of the tensor */
	FIELD(uint16_t, name_len, NAME(0))
	FIELD(uint16_t, reserved, ZERO)
	FIELD(uint32_t, evict_idle_s, ANY) /* what was used in so many last seconds makes no space */
END(wire_create, 48)
MESSAGE(CREATE, 3, wire_create, SERIAL)

/* The description of a tensor in COMMIT, MEMBER and PLACE. Its shape, strides, name and metadata
 * follow the fixed part of the message. description.h writes and reads all of it. */
STRUCT(wire_description)
	FIELD(uint8_t, dtype_code, ANY)
	FIELD(uint8_t, dtype_bits, ANY)
	FIELD(uint16_t, dtype_lanes, ANY)
	FIELD(uint8_t, ndim, SIZES)
	FIELD(uint8_t, nstrides, STRIDES) /* 0, which means C order, or ndim */
	FIELD(uint8_t, flags, FLAGS(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, [2] = "PADDED"))
	FIELD(uint8_t, lifetime, LIFETIME)
	FIELD(uint16_t, name_len, NAME(1))
	FIELD(uint16_t, meta_len, METADATA)
	FIELD(uint32_t, reserved, ZERO)
	FIELD(uint64_t, ttl_ns, NUMBER(0, TENSOR_TTL_MAX)) /* from its commit on; 0: for ever */
	FIELD(uint64_t, version, ANY) /* 0: the one after the name's last */
END(wire_description, 32)

/* COMMIT publishes a draft. Answer: COMMITTED. If it fails the draft is aborted, unless the flag
 * KEEP says that somebody still uses it. */
STRUCT(wire_commit)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(struct wire_description, tensor, MEMBERS(wire_description))
	FIELD(uint32_t, flags, FLAGS(WIRE_COMMIT_PREFETCH | WIRE_COMMIT_KEEP,
			      [1] = "PREFETCH", [2] = "KEEP"))
	FIELD(uint32_t, prefetch_serial, ANY) /* of the CREATE that PREFETCH stands for, or 0 */
END(wire_commit, 64)
MESSAGE(COMMIT, 4, wire_commit, SERIAL, CHECK(check_commit))

/* ABORT and RELEASED have no answer; a ref that means nothing any more is ignored. */
STRUCT(wire_ref)
	HEADER
	FIELD(uint64_t, ref, REF)
END(wire_ref, 24)
MESSAGE(ABORT, 5, wire_ref)

/*
 * MAP asks for the segment of a tensor on which the client's ledger shows a lease. If that tensor
 * is reclaimed already, it asks for the segment of the present tensor of @name, an index of the
 * catalog. Answer: SEGMENT.
 */
STRUCT(wire_map)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint32_t, name, INDEX_OR_NONE)
	FIELD(uint32_t, reserved, ZERO)
END(wire_map, 32)
MESSAGE(MAP, 6, wire_map, SERIAL)

/* DELETE, then a name. Answer: DONE, or STALE if @version is not 0 and the name means another
 * version. */
STRUCT(wire_delete)
	HEADER
	FIELD(uint64_t, version, ANY) /* 0: any version */
	FIELD(uint16_t, name_len, NAME(1))
	FIELD(uint16_t, reserved, ZERO)
	FIELD(uint32_t, reserved2, ZERO)
END(wire_delete, 32)
MESSAGE(DELETE, 7, wire_delete, SERIAL)
MESSAGE(RELEASED, 8, wire_ref)

/* LINK, then a name and metadata, publishes the bytes of a tensor under another name. The client
 * must have a lease on the tensor. Answer: COMMITTED. */
STRUCT(wire_link)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint16_t, name_len, NAME(1))
	FIELD(uint16_t, meta_len, METADATA)
	FIELD(uint8_t, lifetime, LIFETIME)
	ARRAY(uint8_t, reserved, 3, ZERO)
	FIELD(uint64_t, ttl_ns, NUMBER(0, TENSOR_TTL_MAX))
	FIELD(uint64_t, version, ANY) /* as in wire_description */
END(wire_link, 48)
MESSAGE(LINK, 9, wire_link, SERIAL)

/* CLIENTS asks for the first client with an id above @after. Answer: CLIENT, or DONE: there is
 * none. */
STRUCT(wire_clients)
	HEADER
	FIELD(uint64_t, after, ANY)
END(wire_clients, 24)
MESSAGE(CLIENTS, 10, wire_clients, SERIAL)

/*
 * HOLDINGS asks for the first slot, from @slot on, that the client @id holds. Answer: HOLDING, or
 * DONE: there is none.
 */
STRUCT(wire_holdings)
	HEADER
	FIELD(uint64_t, id, ANY)
	FIELD(uint32_t, slot, ANY)
	FIELD(uint32_t, reserved, ZERO)
END(wire_holdings, 32)
MESSAGE(HOLDINGS, 11, wire_holdings, SERIAL)

/* SYNC. Answer: DONE, once no work is left that an earlier message began. */
STRUCT(wire_plain)
	HEADER
END(wire_plain, 16)
MESSAGE(SYNC, 12, wire_plain, SERIAL)

/*
 * MEMBER makes a hidden tensor in the memory of the draft @ref, which becomes a group's. It has no
 * answer, except an ERROR if the member cannot be made; then the group cannot be published either.
 */
STRUCT(wire_member)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint64_t, offset, ANY) /* in the draft's memory, a multiple of TENSOR_ALIGNMENT */
	FIELD(struct wire_description, tensor, MEMBERS(wire_description))
END(wire_member, 64)
MESSAGE(MEMBER, 13, wire_member, CHECK(check_member))

/* GROUP publishes the @count members of the draft @ref in one step and ends it. Answer: DONE. */
STRUCT(wire_group)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint32_t, count, NUMBER(1, UINT32_MAX))
	FIELD(uint32_t, reserved, ZERO)
END(wire_group, 32)
MESSAGE(GROUP, 14, wire_group, SERIAL)
/* clang-format on */
