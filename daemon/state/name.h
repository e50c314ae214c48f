/* SPDX-License-Identifier: Apache-2.0 */
/* Names: each maps a text to the tensor that it means now, and keeps the last version given out. */
#pragma once

#include "daemon/state/catalog.h"
#include "proto/name_key.h"

enum { NAME_BUCKET_MAX = 16 }; /* names of one user in one bucket */

struct name_info {
	struct account *account; /* charged for it; NULL while it is forgotten */
	uint32_t pins;		 /* rows that carry this name */
	uint32_t uid;		 /* who published the current tensor */
	uint32_t next, prev;	 /* among the forgotten, oldest first */
	uint32_t unwatched;	 /* the epoch of watches in which nobody watches it (watch.c) */
	bool forgotten;		 /* no tensor, no pins: only its version is remembered */
};

struct names {
	struct catalog *catalog;
	struct name_info *info; /* by index */
	uint32_t oldest, newest;
};

int names_init(struct names *names, struct catalog *catalog);
void names_deinit(struct names *names);

/* The index of that name, or CATALOG_NONE. */
uint32_t name_find(const struct names *names, const struct name_key *key);

/*
 * Finds or makes the index of that name. One that nobody was charged for is charged to @account: a
 * new one uses memory that name_prepare() set aside, and one that is long takes over *@chunks that
 * were reserved for @account. STATE_E_BUCKET, or what account_take() returns.
 */
int name_take(struct names *names, struct account *account, const struct name_key *key,
	      uint32_t *index, uint32_t *chunks);
/* @account is charged for the name from now on: it publishes there. */
void name_own(struct names *names, uint32_t index, struct account *account);

/*
 * Makes sure that @count names can be taken, if need be by forgetting versions of deleted ones.
 * Fails as catalog_take() does.
 */
int name_prepare(struct names *names, uint32_t count);

/* A pin is a row that carries the name. When the last one goes, a name without a tensor is
 * forgotten. */
void name_pin(struct names *names, uint32_t index);
void name_unpin(struct names *names, uint32_t index);

/* A name that a former daemon left, with so many pins, charged to @account if it has any. Fails as
 * account_adopt(). */
int name_adopt(struct names *names, uint32_t index, struct account *account, uint32_t pins);

/* Removes the oldest forgotten name. False: there is none. */
bool name_evict(struct names *names);

/* Writes the whole text into @text of 255 bytes and returns its length. */
uint16_t name_text(const struct names *names, uint32_t index, char *text);
