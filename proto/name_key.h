/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name and its hash, by which both ends find it in the catalog. The high half of the hash chooses
 * the bucket. The low half is compared before the text is, and chooses the wake word. Each catalog
 * has a seed of its own, so that names which share a bucket in one do not in another. Clients know
 * the seed, and can find such names.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct name_key {
	const char *text; /* need not end with NUL */
	size_t len;
};

static inline struct name_key name_key(const char *text, size_t len)
{
	return (struct name_key){ .text = text, .len = len };
}

/* @seed is the catalog's. */
static inline uint64_t name_hash(const struct name_key *key, uint64_t seed)
{
	return XXH3_64bits_withSeed(key->text, key->len, seed);
}

static inline uint32_t name_hash_low(uint64_t hash)
{
	return (uint32_t)hash;
}

/* @mask is the catalog's bucket_mask. */
static inline uint32_t name_hash_bucket(uint64_t hash, uint32_t mask)
{
	return (uint32_t)(hash >> 32) & mask;
}
