/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name and its hash, by which both ends find it in the catalog: the high half of the hash chooses
 * the bucket, the low half is compared before the text is, and chooses the wake word.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct name_key {
	const char *text; /* need not end with NUL */
	size_t len;
	uint64_t hash; /* XXH3_64bits of the text */
};

static inline struct name_key name_key(const char *text, size_t len)
{
	return (struct name_key){ .text = text, .len = len, .hash = XXH3_64bits(text, len) };
}

static inline uint32_t name_key_low(const struct name_key *key)
{
	return (uint32_t)key->hash;
}

/* @mask is the catalog's bucket_mask. */
static inline uint32_t name_key_bucket(const struct name_key *key, uint32_t mask)
{
	return (uint32_t)(key->hash >> 32) & mask;
}
