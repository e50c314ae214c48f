/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ref names one life of a slot of the catalog: generation << 24 | slot. 0 is no ref. Generations
 * start at 1; a slot that has had the last one is never used again.
 */
#pragma once

#include <stdint.h>

enum { REF_SLOT_BITS = 24 };

#define REF_LEAST ((uint64_t)1 << REF_SLOT_BITS) /* of generation 1 */
#define ROW_GENERATION_MAX (((uint64_t)1 << (63 - REF_SLOT_BITS)) - 1)
/* A ring's ref has this bit, its own generation, and its index in place of a slot. */
#define REF_RING ((uint64_t)1 << 63)
/* A stream's ref has this bit as well. */
#define REF_STREAM ((uint64_t)1 << 62)

static inline uint64_t ref_make(uint64_t generation, uint32_t slot)
{
	return generation << REF_SLOT_BITS | slot;
}

static inline uint64_t ring_ref_make(uint32_t generation, uint32_t index)
{
	return REF_RING | ref_make(generation, index);
}

/* The generation of a ring. */
static inline uint32_t ref_ring_generation(uint64_t ref)
{
	return (uint32_t)(ref >> REF_SLOT_BITS);
}

static inline uint32_t ref_slot(uint64_t ref)
{
	return (uint32_t)(ref & ((1U << REF_SLOT_BITS) - 1));
}

static inline uint64_t ref_generation(uint64_t ref)
{
	return ref >> REF_SLOT_BITS;
}
