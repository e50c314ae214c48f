/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of a ring: the meaning of its name. Its producer writes it, and the daemon at the ring's
 * end; everybody else maps it read-only. Nothing in it is trusted: a tensor found here is checked
 * under a lease as any other, and a version is only a number that the producer gives.
 * docs/protocol/rings.md has the steps; tests/model/ring.pml checks them.
 */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "proto/ref.h"
#include "proto/row_layout.h"

enum {
	RING_PAGE_SIZE = 4096,
	RING_SLOTS_MIN = 3,
	RING_SLOTS_MAX = 64,
	RING_REFS_MAX = 64, /* in one RETIRE */
	RING_INDEX_BITS = 10,
	CATALOG_RINGS = 1 << RING_INDEX_BITS, /* of one namespace; streams count as well */
	RINGS_CLIENT_MAX = 64,
};

/*
 * The word of a page: the generation of the row that the name means << 8 | its index among the
 * ring's rows << 1 | dead. It is never the same twice, and 0 when the ring is over. Its low half is
 * the futex word for waiting for a newer version.
 */
#define RING_DEAD ((uint64_t)1)

static inline uint64_t ring_word(uint64_t generation, unsigned index)
{
	return generation << 8 | (uint64_t)index << 1;
}

static inline uint64_t ring_word_generation(uint64_t word)
{
	return word >> 8;
}

static inline unsigned ring_word_index(uint64_t word)
{
	return (unsigned)(word >> 1) & 127;
}

struct ring_entry {
	uint64_t version;
	uint64_t committed_ns;
	uint32_t slot; /* slot of the row; the daemon writes it when the ring begins */
	uint16_t meta_len;
	uint16_t reserved;
	uint8_t meta[CATALOG_INLINE_META];
};
static_assert(sizeof(struct ring_entry) == 48, "layout");

struct ring_page {
	alignas(64) _Atomic uint64_t word;
	_Atomic uint32_t watched; /* set by the daemon: a client may sleep on the word */
	uint32_t count;
	alignas(64) struct ring_entry entries[RING_SLOTS_MAX];
};
static_assert(sizeof(struct ring_page) <= RING_PAGE_SIZE, "layout");

static inline const _Atomic uint32_t *ring_futex(const struct ring_page *page)
{
	return (const _Atomic uint32_t *)(const void *)&page->word +
	       (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* A row's ring, and its index there, as the row stores them. */
static inline uint64_t ring_slot_make(uint64_t ring, unsigned index)
{
	return (ring & ~REF_RING) | (uint64_t)index << RING_INDEX_BITS;
}

static inline uint64_t ring_slot_ring(uint64_t slot)
{
	return (slot & ~(uint64_t)0xfffc00) | REF_RING;
}

static inline bool row_is_of_stream(const struct catalog_row *row)
{
	return row->flags & ROW_RING && ring_slot_ring(row->ring) & REF_STREAM;
}

static inline unsigned ring_slot_index(uint64_t slot)
{
	return (unsigned)(slot >> RING_INDEX_BITS) & 0x3fff;
}
