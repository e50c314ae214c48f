/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ref names one life of a slot of the catalog: generation << 24 | slot. 0 is no ref. Generations
 * start at 1; a slot that has had the last one is never used again.
 */
#pragma once

#include <stdint.h>

enum { REF_SLOT_BITS = 24 };

#define REF_LEAST ((uint64_t)1 << REF_SLOT_BITS) /* of generation 1 */
#define ROW_GENERATION_MAX (((uint64_t)1 << (64 - REF_SLOT_BITS)) - 1)

static inline uint64_t ref_make(uint64_t generation, uint32_t slot)
{
	return generation << REF_SLOT_BITS | slot;
}

static inline uint32_t ref_slot(uint64_t ref)
{
	return (uint32_t)(ref & ((1U << REF_SLOT_BITS) - 1));
}

static inline uint64_t ref_generation(uint64_t ref)
{
	return ref >> REF_SLOT_BITS;
}
