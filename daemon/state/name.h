/* SPDX-License-Identifier: Apache-2.0 */
/* Names: each maps a text to its current tensor, and keeps the last version given out. */
#pragma once

#include "daemon/state/catalog.h"
#include "proto/name_key.h"
#include "util/clock.h"

enum { NAME_BUCKET_MAX = 16 }; /* names of one user in one bucket */

struct name_info {
	struct account *account; /* charged for it; NULL while the name is forgotten */
	uint32_t pins;		 /* rows that carry this name */
	uint32_t uid;		 /* the user who published the current tensor */
	uint32_t next, prev;	 /* in the list of forgotten names, oldest first */
	uint32_t retired; /* its first RETIRED row, in a circular list, or CATALOG_NONE (lease.c) */
	uint32_t unwatched; /* the epoch of watches in which no watch covers it (watch.c) */
	bool forgotten;	    /* no tensor, no pins: only its version is remembered */
};

struct names {
	struct catalog *catalog;
	struct name_info *info; /* by index */
	uint32_t oldest, newest;
	uint32_t chunky; /* no older forgotten name than this one has chunks */
};

int names_init(struct names *names, struct catalog *catalog);
void names_deinit(struct names *names);
/* Returns a version that no name has ever exceeded. */
uint64_t names_highest(const struct names *names);

/* The index of that name, or CATALOG_NONE. */
uint32_t name_find(const struct names *names, const struct name_key *key);

/*
 * Finds or makes the index of that name, and charges it to @account if nobody was charged for it. A
 * new name uses memory that name_prepare() set aside. A long one takes over *@chunks that were
 * reserved for @account. Returns STATE_E_BUCKET, or an outcome of account_take().
 */
int name_take(struct names *names, struct account *account, const struct name_key *key,
	      uint32_t *index, uint32_t *chunks);
/* Charges the name to @account from now on, because that user publishes there. */
void name_own(struct names *names, uint32_t index, struct account *account);

/* Makes sure that @count names can be taken, if need be by forgetting versions of deleted names.
 * Fails as catalog_take() does. */
int name_prepare(struct names *names, uint32_t count);

/* A pin is a row that carries the name. A name without a tensor is forgotten when its last pin
 * goes. */
void name_pin(struct names *names, uint32_t index);
void name_unpin(struct names *names, uint32_t index);

/* Takes over a name that a former daemon left, with @pins pins, and charges it to @account if it
 * has any. Fails as account_adopt() does. */
int name_adopt(struct names *names, uint32_t index, struct account *account, uint32_t pins);

/* Removes the oldest forgotten name. False: there is none. */
bool name_evict(struct names *names);

/* Sets chunks aside in the catalog, if need be by forgetting versions of deleted names that have
 * some. Fails as catalog_take() does. */
int name_chunks_reserve(struct names *names, uint32_t chunks);

/* Writes the whole text into @text of 255 bytes and returns its length. */
uint16_t name_text(const struct names *names, uint32_t index, char *text);

/*
 * Notes if the tensor in @slot gives its name another type or shape than another program did, whose
 * tensor is in @former_slot and not old. Two programs may be using one name by accident. To be
 * called before @producer becomes the name's producer. True: that was noted.
 */
bool name_retyped(struct names *names, uint32_t slot, uint32_t former_slot, uint64_t producer);

/*
 * The highest version that is believed of an instance that knew @known to be the highest at @since,
 * by CLOCK_MONOTONIC. No name is published every nanosecond, so a version above both that and the
 * time is a lie or damage. The time alone would be no limit: versions may have begun there, before
 * it was set back. The limit rises only as fast as time passes, whatever is believed below it. So
 * versions stay far from the largest number.
 */
static inline uint64_t version_limit(uint64_t known, uint64_t since)
{
	uint64_t most = known + ((uint64_t)now_mono_ns() - since), now = (uint64_t)now_real_ns();

	return most > now ? most : now;
}
