/* SPDX-License-Identifier: Apache-2.0 */
/* Names: which tensor a text means now, and the version last given out under it. */
#pragma once

#include "daemon/state/catalog.h"
#include "proto/name_key.h"

struct name_info {
	uint32_t pins;	     /* rows that carry this name */
	uint32_t uid;	     /* who published the current tensor */
	uint32_t next, prev; /* among the forgotten, oldest first */
	bool forgotten;	     /* no tensor, no pins: only its version is remembered */
};

struct names {
	struct catalog *catalog;
	struct name_info *info; /* by index */
	uint32_t oldest, newest;
	uint64_t floor; /* the highest version of a name that was evicted */
};

int names_init(struct names *names, struct catalog *catalog);
void names_deinit(struct names *names);

/* The index of that name, or CATALOG_NONE. */
uint32_t name_find(const struct names *names, const struct name_key *key);

/*
 * Finds or makes the index of that name. A new one uses memory that name_prepare() set aside, and
 * *@chunks reserved chunks if it is long. STATE_E_BUCKET, STATE_E_TENSORS.
 */
int name_take(struct names *names, const struct name_key *key, uint32_t *index, uint32_t *chunks);

/*
 * Makes sure that @count names can be taken, if need be by forgetting versions of deleted ones.
 * Fails as catalog_take() does.
 */
int name_prepare(struct names *names, uint32_t count);

/* A pin is a row that carries the name. When the last one goes, a name without a tensor is
 * forgotten. */
void name_pin(struct names *names, uint32_t index);
void name_unpin(struct names *names, uint32_t index);

/* Removes the oldest forgotten name. False: there is none. */
bool name_evict(struct names *names);

/* Writes the whole text into @text of 255 bytes and returns its length. */
uint16_t name_text(const struct names *names, uint32_t index, char *text);
