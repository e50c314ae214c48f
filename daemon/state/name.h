/* SPDX-License-Identifier: Apache-2.0 */
/* Names: which tensor a text means now, and the version last given out under it. */
#pragma once

#include "daemon/state/state.h"
#include "proto/name_key.h"

/* The index of that name, or CATALOG_NONE. */
uint32_t name_find(const struct state *st, const struct name_key *key);

/*
 * The index of that name, made at need from memory that name_prepare() saw to, and from reserved
 * chunks if it is long. STATE_E_BUCKET, STATE_E_TENSORS.
 */
int name_take(struct state *st, const struct name_key *key, struct tensor *payer, uint32_t *index);

/* Makes sure that @count names can be taken, forgetting versions of deleted ones if it must. As
 * catalog_take(). */
int name_prepare(struct state *st, uint32_t count);
/* Chunks a name of @len bytes needs. */
uint32_t name_chunks(uint16_t len);

/* A row says that it is called so. The last one out forgets a name that means nothing. */
void name_pin(struct state *st, uint32_t index);
void name_unpin(struct state *st, uint32_t index);

/* Forgets the oldest forgotten name for good; false: there is none. */
bool name_evict(struct state *st);

/* The whole text, into @text of TENSOR_NAME_MAX bytes. */
uint16_t name_text(const struct state *st, uint32_t index, char *text);
