/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about memory on devices (docs/protocol/devices.md), in the notation of wire_messages.h.
 * The memory is its producer's, and the daemon only passes on the handles and descriptors that open
 * it.
 */
/* clang-format off */

/* EXPORT makes a segment of memory on a device. Its descriptor is that of the first part, or of the
 * pool; SEGMENT_CUDA_IPC has none. Answer: EXPORTED. */
STRUCT(wire_export)
	HEADER
	FIELD(uint64_t, size, NUMBER(1, WIRE_DEVICE_BYTES_MAX)) /* the sum of its parts */
	/* of the first part, or of an IMPORTED one */
	FIELD(uint64_t, part_size, NUMBER(1, WIRE_DEVICE_BYTES_MAX))
	FIELD(uint32_t, kind, NUMBER(SEGMENT_CUDA_IPC, SEGMENT_CUDA_POOL)) /* enum segment_kind */
	FIELD(uint32_t, parts, NUMBER(1, WIRE_PARTS_MAX)) /* 1 if not SEGMENT_CUDA_VMM */
	ARRAY(uint8_t, device, WIRE_DEVICE_ID, UUID)
	ARRAY(uint8_t, handle, WIRE_HANDLE_BYTES, OPAQUE) /* zero if SEGMENT_CUDA_VMM */
END(wire_export, 120)
MESSAGE(EXPORT, 15, wire_export, SERIAL, FD_IF(export_has_fd), CHECK(check_export))

/* PART is the next part of a segment of several. It has no answer, except an ERROR if the part
 * cannot be taken. */
STRUCT(wire_part)
	HEADER
	FIELD(uint64_t, part_size, NUMBER(1, UINT64_MAX))
	FIELD(uint32_t, segment, NUMBER(0, CATALOG_MAX_TENSORS - 1))
	FIELD(uint32_t, segment_generation, ANY)
	FIELD(uint32_t, part, NUMBER(1, WIRE_PARTS_MAX - 1)) /* 1, 2, ... in this order */
	FIELD(uint32_t, reserved, ZERO)
END(wire_part, 40)
MESSAGE(PART, 16, wire_part, WITH_FD)

/* UNEXPORT ends a segment. Answer: DONE when all clients have unmapped it. */
STRUCT(wire_segment_ref)
	HEADER
	FIELD(uint32_t, segment, NUMBER(0, CATALOG_MAX_TENSORS - 1))
	FIELD(uint32_t, segment_generation, ANY)
END(wire_segment_ref, 24)
MESSAGE(UNEXPORT, 17, wire_segment_ref, SERIAL)

/* IMPORT asks for the handle or descriptor of a part of a segment. Answer: IMPORTED. */
STRUCT(wire_import)
	HEADER
	FIELD(uint32_t, segment, NUMBER(0, CATALOG_MAX_TENSORS - 1))
	FIELD(uint32_t, segment_generation, ANY)
	FIELD(uint32_t, part, NUMBER(0, WIRE_PARTS_MAX - 1))
	FIELD(uint32_t, reserved, ZERO)
END(wire_import, 32)
MESSAGE(IMPORT, 18, wire_import, SERIAL)

/* UNMAPPED: the client has closed its imports of the segment, or, of shared memory, its writable
 * mapping. No answer. */
MESSAGE(UNMAPPED, 19, wire_segment_ref)

/*
 * PLACE publishes a tensor that lies in a segment of the same connection. With EVENT the handle of
 * an event follows the metadata. With UNREPORTED too the client does not know when that event has
 * come. Answer: PLACED.
 */
STRUCT(wire_place)
	HEADER
	FIELD(uint64_t, offset, ANY) /* in the segment */
	FIELD(uint64_t, cookie, HEX) /* comes back with FREED */
	FIELD(struct wire_description, tensor, MEMBERS(wire_description))
	FIELD(uint32_t, segment, NUMBER(0, CATALOG_MAX_TENSORS - 1))
	FIELD(uint32_t, segment_generation, ANY)
	FIELD(uint32_t, flags, FLAGS(WIRE_PLACE_EVENT, "EVENT"), .unit = WIRE_HANDLE_BYTES)
	FIELD(uint32_t, unreported, FLAGS(WIRE_PLACE_UNREPORTED, "UNREPORTED"))
END(wire_place, 80)
MESSAGE(PLACE, 20, wire_place, SERIAL, CHECK(check_place))

/* FINISHED: the work that the event stands for has ended, or has failed. No answer. */
STRUCT(wire_finished)
	HEADER
	FIELD(uint64_t, ref, REF)
	FIELD(uint32_t, failed, NUMBER(0, 1))
	FIELD(uint32_t, reserved, ZERO)
END(wire_finished, 32)
MESSAGE(FINISHED, 21, wire_finished)

/* DEVICES asks for the first device whose number is at least @from. Answer: DEVICE, or DONE. */
STRUCT(wire_devices)
	HEADER
	FIELD(uint32_t, from, ANY)
	FIELD(uint32_t, reserved, ZERO)
END(wire_devices, 24)
MESSAGE(DEVICES, 22, wire_devices, SERIAL)

/* HOLD, between WELCOME and LEDGER: the client, a child that fork() is about to make, has inherited
 * a mapping of the segment. There is no answer; READY confirms it. */
MESSAGE(HOLD, 23, wire_segment_ref)

/*
 * KEEP, before the first EXPORT of SEGMENT_CUDA_VMM on a device: the descriptor keeps that device
 * open, which those of memory do not, and the memory on a device goes when no process has that
 * open. It is kept as long as the segments that the connection exports there from now on. It has no
 * answer, except an ERROR.
 */
STRUCT(wire_keep)
	HEADER
	ARRAY(uint8_t, device, WIRE_DEVICE_ID, UUID)
END(wire_keep, 32)
MESSAGE(KEEP, 24, wire_keep, WITH_FD)
/* clang-format on */
