/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages about tensors on devices: their memory is the producer's, and the daemon only hands on
 * what opens it. PROTOCOL.md section 8 describes them. Included by wire.h.
 */
#pragma once

enum {
	WIRE_HANDLE_BYTES = 64, /* of a CUDA IPC handle, for memory or for an event */
	WIRE_DEVICE_ID = 16,	/* a device's UUID */
	WIRE_PARTS_MAX = 1024,	/* allocations that one segment spans */
};

/* Of a segment on a device: the sum of as many as there can be is still a number. */
#define WIRE_DEVICE_BYTES_MAX ((uint64_t)1 << 46)

/*
 * EXPORT: a segment of memory on a device; with an fd if it is SEGMENT_CUDA_VMM, that of its first
 * part, or SEGMENT_CUDA_POOL, that of its pool. Answer: EXPORTED or ERROR. IMPORTED, with such an
 * fd, is the same struct.
 */
struct wire_export {
	struct wire_header header;
	uint64_t size;	    /* of the segment: the sum of its parts */
	uint64_t part_size; /* of the part at hand */
	uint32_t kind;	    /* enum segment_kind, not SEGMENT_SHM */
	uint32_t parts;	    /* 1 to WIRE_PARTS_MAX; 1 if not SEGMENT_CUDA_VMM */
	uint8_t device[WIRE_DEVICE_ID];
	uint8_t handle[WIRE_HANDLE_BYTES]; /* zero if SEGMENT_CUDA_VMM */
};
static_assert(sizeof(struct wire_export) == 120, "wire");

/* PART with one fd: the next part of a segment of several. No answer; ERROR if it cannot be. */
struct wire_part {
	struct wire_header header;
	uint64_t part_size;
	uint32_t segment;
	uint32_t segment_generation;
	uint32_t part; /* 1, 2, ... in this order */
	uint32_t reserved;
};
static_assert(sizeof(struct wire_part) == 40, "wire");

/* IMPORT: what opens a part of a segment. Answer: IMPORTED or ERROR. */
struct wire_import {
	struct wire_header header;
	uint32_t segment;
	uint32_t segment_generation;
	uint32_t part;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_import) == 32, "wire");

enum {
	WIRE_PLACE_EVENT = 1, /* unfinished: WIRE_HANDLE_BYTES of an event follow the metadata */
};

/*
 * PLACE, then ndim sizes of 8 bytes, name_len bytes of name, meta_len bytes of metadata, an event's
 * handle if the flag says so: publishes what lies there. Answer: PLACED or ERROR.
 */
struct wire_place {
	struct wire_header header;
	uint64_t offset; /* in the segment */
	uint64_t cookie; /* comes back with FREED */
	uint32_t segment;
	uint32_t segment_generation;
	uint32_t flags;
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	uint8_t ndim;
	uint8_t tensor_flags; /* as in COMMIT */
	uint16_t name_len;
	uint16_t meta_len;
	uint16_t reserved;
};
static_assert(sizeof(struct wire_place) == 56, "wire");

struct wire_placed {
	struct wire_header header;
	uint64_t ref;
	uint64_t version;
};
static_assert(sizeof(struct wire_placed) == 32, "wire");

/* FREED, serial 0: nobody holds the tensor any more. Its memory is the producer's again. */
struct wire_freed {
	struct wire_header header;
	uint64_t ref;
	uint64_t cookie;
};
static_assert(sizeof(struct wire_freed) == 32, "wire");

/* FINISHED: the work that the event stands for has ended. No answer. */
struct wire_finished {
	struct wire_header header;
	uint64_t ref;
	uint32_t failed; /* 1: it failed, the bytes are not what they should be */
	uint32_t reserved;
};
static_assert(sizeof(struct wire_finished) == 32, "wire");

/* DEVICES: the first device whose number is at least @from. Answer: DEVICE, or DONE: there is none.
 */
struct wire_devices {
	struct wire_header header;
	uint32_t from;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_devices) == 24, "wire");

struct wire_device {
	struct wire_header header;
	uint8_t device[WIRE_DEVICE_ID];
	uint64_t used;		/* bytes of segments on it */
	uint64_t capacity;	/* UINT64_MAX: no limit */
	uint64_t user_capacity; /* likewise, of each user */
	uint32_t number;
	uint32_t segments;
};
static_assert(sizeof(struct wire_device) == 64, "wire");
