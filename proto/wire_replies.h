/* SPDX-License-Identifier: Apache-2.0 */
/* The messages from the daemon to a client, in the notation of wire_messages.h. */
/* clang-format off */

/* WELCOME answers HELLO. The client's word is clients[@client_index] of the catalog. */
STRUCT(wire_welcome)
	HEADER
	FIELD(uint16_t, version, NUMBER(1, UINT16_MAX))
	FIELD(uint16_t, reserved, ZERO)
	FIELD(uint32_t, client_index, ANY)
	FIELD(uint32_t, client_generation, NUMBER(1, UINT32_MAX)) /* for live_word() */
	FIELD(uint32_t, max_tensors, NUMBER(1, CATALOG_MAX_TENSORS)) /* slots a ledger must have */
	FIELD(uint64_t, catalog_size, NUMBER(sizeof(struct catalog_header), INT64_MAX))
	FIELD(uint64_t, catalog_layout, HEX)
	FIELD(uint64_t, instance, HEX)
	FIELD(uint64_t, mono_ns, ANY) /* CLOCK_MONOTONIC of the daemon, which may be ahead of ours */
END(wire_welcome, 64)
MESSAGE(WELCOME, 64, wire_welcome, SERIAL, WITH_FD)

/* READY answers LEDGER. */
MESSAGE(READY, 65, wire_plain, SERIAL)

/* DRAFT answers CREATE, and a COMMIT that prefetches. */
STRUCT(wire_draft)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint64_t, offset, ANY)
	FIELD(uint64_t, segment_size, ANY)
	FIELD(uint32_t, segment, INDEX_OR_NONE) /* none: the tensor has no bytes */
	FIELD(uint32_t, segment_generation, ANY)
	FIELD(uint32_t, flags, FLAGS(WIRE_DRAFT_FD, "FD"))
	FIELD(uint32_t, reserved, ZERO)
END(wire_draft, 56)
MESSAGE(DRAFT, 66, wire_draft, SERIAL, FD_IF(draft_has_fd), CHECK(check_draft))

/* COMMITTED answers COMMIT and LINK. */
STRUCT(wire_committed)
	HEADER
	FIELD(uint64_t, version, NUMBER(1, UINT64_MAX))
END(wire_committed, 24)
MESSAGE(COMMITTED, 67, wire_committed, SERIAL)

/* SEGMENT answers MAP. The descriptor is for reading. */
STRUCT(wire_segment)
	HEADER
	FIELD(uint64_t, size, NUMBER(1, INT64_MAX))
	FIELD(uint32_t, segment, NUMBER(0, CATALOG_MAX_TENSORS - 1))
	FIELD(uint32_t, segment_generation, NUMBER(1, UINT32_MAX))
END(wire_segment, 32)
MESSAGE(SEGMENT, 68, wire_segment, SERIAL, WITH_FD)

MESSAGE(DONE, 69, wire_plain, SERIAL)

/* CLIENT answers CLIENTS. */
STRUCT(wire_client)
	HEADER
	FIELD(uint64_t, id, NUMBER(1, UINT64_MAX))
	FIELD(uint32_t, pid, ANY)
	FIELD(uint32_t, uid, ANY)
	FIELD(uint32_t, gid, ANY)
	FIELD(uint32_t, drafts, ANY)
	FIELD(uint64_t, leases, ANY)
	FIELD(uint64_t, tensors_held, ANY)
	FIELD(uint64_t, bytes_held, ANY)
	ARRAY(char, label, WIRE_LABEL_MAX, LABEL)
	FIELD(uint64_t, since_ns, ANY) /* when it connected, CLOCK_REALTIME */
END(wire_client, 104)
MESSAGE(CLIENT, 70, wire_client, SERIAL)

/* HOLDING, then the tensor's name, answers HOLDINGS. */
STRUCT(wire_holding)
	HEADER
	FIELD(uint64_t, version, ANY) /* 0: it is an item's, or will be, of the stream of that name */
	FIELD(uint64_t, nbytes, ANY)
	FIELD(uint32_t, slot, NUMBER(0, CATALOG_MAX_TENSORS - 1))
	FIELD(uint32_t, leases, ANY)
	FIELD(uint16_t, name_len, NAME(1))
	FIELD(uint8_t, retired, NUMBER(0, 1))
	ARRAY(uint8_t, reserved, 5, ZERO)
END(wire_holding, 48)
MESSAGE(HOLDING, 71, wire_holding, SERIAL)

/*
 * ERROR, then text for people, may answer any request. Its serial is 0 if it is about no request in
 * particular. `cause` is one of enum wire_cause, or 0; an unknown one means the same as 0.
 */
STRUCT(wire_error_reply)
	HEADER
	FIELD(uint32_t, code, ERROR_CODE)
	FIELD(uint16_t, text_len, TEXT)
	FIELD(uint16_t, cause, ANY)
END(wire_error_reply, 24)
MESSAGE(ERROR, 72, wire_error_reply)

/* ---- memory on devices: docs/protocol/devices.md ---- */

/* EXPORTED answers EXPORT. */
MESSAGE(EXPORTED, 73, wire_segment_ref, SERIAL)

/* IMPORTED answers IMPORT: the part as EXPORT or PART described it, with its descriptor. */
MESSAGE(IMPORTED, 74, wire_export, SERIAL, FD_IF(export_has_fd), CHECK(check_export))

/* PLACED answers PLACE. */
STRUCT(wire_placed)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint64_t, version, NUMBER(1, UINT64_MAX))
END(wire_placed, 32)
MESSAGE(PLACED, 75, wire_placed, SERIAL)

/* FREED is unsolicited; its serial is 0. Nobody holds the tensor any more, and its memory is the
 * producer's again. */
STRUCT(wire_freed)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint64_t, cookie, HEX)
END(wire_freed, 32)
MESSAGE(FREED, 76, wire_freed)

/* UNMAP is unsolicited; its serial is 0. The client must close all imports of the segment, then
 * send UNMAPPED. */
MESSAGE(UNMAP, 77, wire_segment_ref)

/* DEVICE answers DEVICES. */
STRUCT(wire_device)
	HEADER
	ARRAY(uint8_t, device, WIRE_DEVICE_ID, UUID)
	FIELD(uint64_t, used, ANY) /* bytes of segments on it */
	FIELD(uint64_t, capacity, ANY) /* UINT64_MAX: no limit */
	FIELD(uint64_t, user_capacity, ANY) /* of each user; UINT64_MAX: no limit */
	FIELD(uint32_t, number, ANY)
	FIELD(uint32_t, segments, ANY)
END(wire_device, 64)
MESSAGE(DEVICE, 78, wire_device, SERIAL)

/* KICKED answers KICK. */
STRUCT(wire_kicked)
	HEADER
	FIELD(uint64_t, id, NUMBER(1, UINT64_MAX)) /* of the client */
	FIELD(uint64_t, newest, NUMBER(1, UINT64_MAX)) /* the last id of any client */
	FIELD(uint32_t, uid, ANY)
	FIELD(uint32_t, reserved, ZERO)
END(wire_kicked, 40)
MESSAGE(KICKED, 79, wire_kicked, SERIAL)

/* USER answers USERS. Each array has a number for each share (enum share of the daemon). */
STRUCT(wire_user)
	HEADER
	FIELD(uint64_t, busy_ns, ANY) /* of the daemon's time */
	FIELD(uint32_t, uid, ANY)
	FIELD(uint32_t, reserved, ZERO)
	ARRAY(uint64_t, used, WIRE_SHARES, OPAQUE) /* by the user */
	ARRAY(uint64_t, max, WIRE_SHARES, OPAQUE) /* of the user; UINT64_MAX: no limit */
	ARRAY(uint64_t, used_by_all, WIRE_SHARES, OPAQUE)
	ARRAY(uint64_t, capacity, WIRE_SHARES, OPAQUE) /* of all; UINT64_MAX: no limit */
END(wire_user, 480)
MESSAGE(USER, 80, wire_user, SERIAL)

/*
 * CLAIMED answers CLAIM about its first @count names: bit i tells of name i whether the claim is the
 * client's, or whether the name is published. Without either another client has the claim. The
 * client asks again for those that are left.
 */
STRUCT(wire_claimed)
	HEADER
	FIELD(uint64_t, yours, HEX)
	FIELD(uint64_t, published, HEX)
	FIELD(uint32_t, count, NUMBER(1, WIRE_CLAIMS_MAX))
	FIELD(uint32_t, reserved, ZERO)
END(wire_claimed, 40)
MESSAGE(CLAIMED, 81, wire_claimed, SERIAL)

/* MEMBERS_MADE answers MEMBERS, with the refs of those on devices; 0 for one in shared memory. */
STRUCT(wire_members_made)
	HEADER
	FIELD(uint32_t, count, REFS)
	FIELD(uint32_t, reserved, ZERO)
END(wire_members_made, 24)
MESSAGE(MEMBERS_MADE, 82, wire_members_made, SERIAL)

/* ADOPTED is unsolicited; its serial is 0. The daemon that answered until here is dead. Requests
 * without an answer are to be sent again, with the `life` of this message. */
MESSAGE(ADOPTED, 83, wire_plain)

/* GRANTED answers RING. The descriptor is of the page, for writing. */
STRUCT(wire_granted)
	HEADER
	FIELD(uint64_t, version, NUMBER(1, UINT64_MAX))
	FIELD(uint64_t, ring, HEX)
END(wire_granted, 32)
MESSAGE(GRANTED, 84, wire_granted, SERIAL, WITH_FD)

/* PAGE_OF answers PAGE. The descriptor is for reading. */
STRUCT(wire_page_of)
	HEADER
	FIELD(uint64_t, ring, HEX)
	FIELD(uint32_t, uid, ANY) /* of its producer */
	FIELD(uint32_t, pid, ANY)
END(wire_page_of, 32)
MESSAGE(PAGE_OF, 85, wire_page_of, SERIAL, WITH_FD)

/* WATCHED answers WATCH. */
MESSAGE(WATCHED, 86, wire_watch_ref, SERIAL)

/* STREAM answers OPEN. The descriptor is of the page, for writing. */
STRUCT(wire_stream)
	HEADER
	FIELD(uint64_t, stream, HEX)
	FIELD(uint64_t, number, ANY) /* a subscriber's first; else the end of the order */
	FIELD(uint32_t, member, NUMBER(0, STREAM_MEMBERS)) /* STREAM_MEMBERS: none */
	FIELD(uint32_t, reserved, ZERO)
END(wire_stream, 40)
MESSAGE(STREAM, 87, wire_stream, SERIAL, WITH_FD)

/* ENTRIES answers ROWS: the entry of each row follows, in their order. */
STRUCT(wire_entries)
	HEADER
	FIELD(uint64_t, stream, HEX)
	FIELD(uint32_t, count, NUMBER(1, STREAM_ROWS_MAX), .unit = 8)
	FIELD(uint32_t, reserved, ZERO)
END(wire_entries, 32)
MESSAGE(ENTRIES, 88, wire_entries, SERIAL)

/* POSITIONS_OF answers POSITIONS. */
STRUCT(wire_positions_of)
	HEADER
	FIELD(uint64_t, size, ANY) /* of the ledger */
END(wire_positions_of, 24)
MESSAGE(POSITIONS_OF, 89, wire_positions_of, SERIAL, WITH_FD)

/* STREAM_INFO, then the stream's name, answers STREAMS. */
STRUCT(wire_stream_info)
	HEADER
	FIELD(uint64_t, stream, HEX)
	FIELD(uint64_t, number, ANY) /* that the next item gets */
	FIELD(uint64_t, length, ANY) /* items that somebody has still to take */
	FIELD(uint64_t, created_ns, ANY)
	FIELD(uint64_t, bytes, ANY) /* of its rows */
	FIELD(uint64_t, ttl_ns, NUMBER(0, TENSOR_TTL_MAX))
	FIELD(uint32_t, rows, NUMBER(0, STREAM_ENTRIES))
	FIELD(uint32_t, uid, ANY)
	FIELD(uint32_t, mode, NUMBER(STREAM_BROADCAST, STREAM_QUEUE))
	FIELD(uint32_t, depth, NUMBER(1, STREAM_DEPTH_MAX))
	FIELD(uint32_t, keep, NUMBER(0, STREAM_DEPTH_MAX))
	FIELD(uint32_t, max_tries, NUMBER(0, STREAM_TRIES_MAX))
	FIELD(uint32_t, properties, FLAGS(STREAM_DROPS_OLDEST | STREAM_OWNER_BOUND | STREAM_SHARED, "DROPS_OLDEST", "OWNER_BOUND", "SHARED"))
	FIELD(uint32_t, producers, NUMBER(0, STREAM_MEMBERS))
	FIELD(uint32_t, subscribers, NUMBER(0, STREAM_MEMBERS)) /* lossy ones, too */
	FIELD(uint16_t, ended, NUMBER(0, 1))
	FIELD(uint16_t, name_len, NAME(1))
END(wire_stream_info, 104)
MESSAGE(STREAM_INFO, 90, wire_stream_info, SERIAL)

/* STREAM_MEMBER answers STREAM_MEMBERS. */
STRUCT(wire_stream_member)
	HEADER
	FIELD(uint64_t, client, ANY) /* its id; 0: its connection has ended */
	FIELD(uint64_t, position, ANY) /* of a subscriber; 0: it has none yet */
	FIELD(uint64_t, lag, ANY) /* how far that is behind the end */
	FIELD(uint32_t, member, NUMBER(0, STREAM_MEMBERS - 1))
	FIELD(uint32_t, role, FLAGS(STREAM_PRODUCER | STREAM_SUBSCRIBER | STREAM_LOSSY, "PRODUCER", "SUBSCRIBER", "LOSSY"))
	FIELD(uint32_t, state, NUMBER(STREAM_LIVE, STREAM_GONE))
	FIELD(uint32_t, pid, ANY)
	FIELD(uint32_t, uid, ANY)
	FIELD(uint32_t, held, NUMBER(0, STREAM_ENTRIES)) /* rows */
	ARRAY(char, label, WIRE_LABEL_MAX, LABEL)
END(wire_stream_member, 96)
MESSAGE(STREAM_MEMBER, 91, wire_stream_member, SERIAL)

/* HELD answers READERS: client clients[i] has leases[i] on a tensor published under the name with
 * the index names[i]. The next READERS asks from @id and @slot on. */
STRUCT(wire_held)
	HEADER
	FIELD(uint64_t, id, NUMBER(1, UINT64_MAX))
	FIELD(uint32_t, slot, ANY)
	FIELD(uint32_t, count, NUMBER(1, WIRE_HELD_MAX))
	ARRAY(uint64_t, clients, WIRE_HELD_MAX, OPAQUE) /* catalog_producer() */
	ARRAY(uint32_t, names, WIRE_HELD_MAX, OPAQUE)
	ARRAY(uint32_t, leases, WIRE_HELD_MAX, OPAQUE)
END(wire_held, 480)
MESSAGE(HELD, 92, wire_held, SERIAL)

/* METRICS_ARE answers METRICS: @size bytes of text in the descriptor. */
STRUCT(wire_metrics_are)
	HEADER
	FIELD(uint64_t, size, NUMBER(1, WIRE_METRICS_MAX))
END(wire_metrics_are, 24)
MESSAGE(METRICS_ARE, 93, wire_metrics_are, SERIAL, WITH_FD)
/* clang-format on */
