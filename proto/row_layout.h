/* SPDX-License-Identifier: Apache-2.0 */
/* A row of the catalog: one tensor. Its index is the tensor's slot. */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CATALOG_INLINE_NDIM = 6, CATALOG_INLINE_META = 24 };

#define CATALOG_NONE UINT32_MAX /* in place of an index */

/* A row's word is its generation << 2 | state. */
enum row_state { ROW_FREE = 0, ROW_DRAFT = 1, ROW_LIVE = 2, ROW_RETIRED = 3 };

static inline uint64_t row_word(uint64_t generation, enum row_state state)
{
	return generation << 2 | (uint64_t)state;
}

static inline enum row_state row_word_state(uint64_t word)
{
	return (enum row_state)(word & 3);
}

/* A row's flags beside DLPack's IS_SUBBYTE_TYPE_PADDED. */
enum {
	ROW_SHAPE_IN_CHUNKS = 0x80,
	ROW_ON_DEVICE = 0x40, /* its segment is not SEGMENT_SHM */
	ROW_EVENT = 0x20,     /* the handle of its event is in the chunks */
	ROW_EVICTABLE = 0x10, /* a get notes its time in the ledger */
	ROW_OWNER_BOUND = 0x08,
	ROW_STRIDED = 0x02, /* its strides are in the chunks, after a shape that is there */
	ROW_RING = 0x01,    /* it belongs, or did, to a ring; it never expires */
};

/* The progress of the work on a row's bytes. A row that is not on a device is always
 * ROW_FINISHED. */
enum row_progress {
	ROW_FINISHED = 0,
	ROW_UNFINISHED, /* the work that writes the bytes may still run: wait for the event */
	ROW_LOST,	/* the bytes are lost, and the row stays to report it */
	ROW_UNREPORTED, /* as ROW_UNFINISHED, for good: only the event tells when work has ended */
};

/*
 * A row describes one tensor. All of it but the word and @progress is constant from LIVE until the
 * row is reclaimed. A get reads the first 64 bytes. The chain of chunks that starts at @chunk has,
 * one after the other: the shape, if it has more than CATALOG_INLINE_NDIM sizes or one of 2^32 or
 * more; the strides, if it is ROW_STRIDED; metadata of more than CATALOG_INLINE_META bytes; the
 * handle of an event.
 */
struct catalog_row {
	alignas(64) _Atomic uint64_t word;
	uint64_t offset; /* in the segment; a multiple of TENSOR_ALIGNMENT if that is SEGMENT_SHM */
	uint32_t segment; /* CATALOG_NONE: it has no bytes */
	uint32_t segment_generation;
	uint32_t name;	/* index of its name */
	uint32_t chunk; /* CATALOG_NONE: none */
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	uint16_t meta_len;
	uint8_t ndim;
	uint8_t flags; /* DLPack's IS_SUBBYTE_TYPE_PADDED, and ROW_* */
	uint32_t shape[CATALOG_INLINE_NDIM];

	/* 0: the tensor was published through a ring, and the ring's entry has its version, its
	 * time and its metadata. Otherwise it is stored after these. */
	uint64_t version;
	uint64_t nbytes;
	uint64_t committed_ns;
	union {
		uint64_t expires_ns; /* by CLOCK_MONOTONIC; 0: never */
		uint64_t ring;	     /* with ROW_RING: ring_slot_make() */
	};
	uint32_t uid; /* the user that published it */
	_Atomic uint32_t progress;
	uint8_t meta[CATALOG_INLINE_META];
};
static_assert(sizeof(struct catalog_row) == 128 && offsetof(struct catalog_row, version) == 64,
	      "layout");

/* A member of a group whose element type has no lanes is no tensor: its name means nothing once the
 * group is published. It never becomes LIVE. */
static inline bool row_deletes(uint16_t dtype_lanes)
{
	return dtype_lanes == 0;
}

/* Does a consumer have to wait for the row's event? */
static inline bool row_is_unfinished(const struct catalog_row *row)
{
	uint32_t progress = atomic_load(&row->progress);

	return progress == ROW_UNFINISHED || progress == ROW_UNREPORTED;
}

/* True if the shape fits into the row itself. */
static inline bool row_fits(unsigned ndim, const int64_t *shape)
{
	for (unsigned i = 0; i < ndim; i++) {
		if (i == CATALOG_INLINE_NDIM || shape[i] > UINT32_MAX)
			return false;
	}
	return true;
}

/* The number of bytes of a row's shape and strides that lie in its chunks. */
static inline size_t row_dims_in_chunks(uint8_t flags, unsigned ndim)
{
	unsigned arrays = !!(flags & ROW_SHAPE_IN_CHUNKS) + !!(flags & ROW_STRIDED);

	return arrays * ndim * sizeof(int64_t);
}

/* The number of bytes of shape and metadata that must lie in chunks. */
static inline uint32_t row_extra(unsigned ndim, const int64_t *shape, size_t meta_len)
{
	size_t extra = row_fits(ndim, shape) ? 0 : ndim * sizeof(int64_t);

	return (uint32_t)(extra + (meta_len > CATALOG_INLINE_META ? meta_len : 0));
}
