/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the catalog: finding names, and what a row under a lease says. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <tensorlease/tensorlease.h>

#include "client/session.h"

struct name_key {
	const char *text;
	size_t len;
	uint64_t hash;
};

static inline struct name_key name_key(const char *text)
{
	struct name_key key = { .text = text, .len = strlen(text) };

	key.hash = XXH3_64bits(text, key.len);
	return key;
}

/*
 * Takes a lease on the tensor that the name means, if its version is above @newer_than. 0 and
 * *@ref; LEASE_E_NONE, LEASE_E_OLD and the others of lease.h, or -EPROTO.
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);

/* How long somebody has looked at what the daemon is just changing. Starts as { 0 }. */
struct patience {
	unsigned tries;
	int64_t deadline;
};

/*
 * Before another look at it: 0; LEASE_E_UNSERVED: the daemon is gone; or -ETIMEDOUT.
 */
int lookup_again(struct session *s, struct patience *p);

/* What follows reads a row under the caller's lease. */

/*
 * @n bytes at @from of the chain of chunks. False if the chain is shorter than that: a broken
 * catalog.
 */
bool chunks_read(const struct session *s, uint32_t chunk, size_t from, void *to, size_t n);

int row_shape(const struct session *s, const struct catalog_row *row, int64_t *shape);
int row_info(const struct session *s, const struct catalog_row *row, tl_info *info);

/* The word that is woken when a tensor of that name is committed. */
static inline const _Atomic uint32_t *catalog_wake(const struct session *s,
						   const struct name_key *key)
{
	return &s->catalog->wake[key->hash % CATALOG_WAKE_WORDS];
}
