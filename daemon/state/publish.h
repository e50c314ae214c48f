/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes drafts under names, one or many in one step, and deletes names. */
#pragma once

#include "daemon/state/client.h"
#include "proto/description.h"

/*
 * Publishes the draft @ref of @c. The draft is aborted if that fails: STATE_E_GONE, STATE_E_INVALID
 * (why), STATE_E_DENIED, STATE_E_BUCKET.
 */
int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why);
/*
 * Makes a hidden tensor at @offset in the memory of the draft @ref, which becomes a group's. Fails
 * as tensor_commit() does, but only this member is aborted.
 */
int tensor_member(struct state *st, struct client *c, uint64_t ref, uint64_t offset,
		  const struct tensor_description *d, const char **why);

/* Publishes the @count members of @ref in one step, or aborts them all. Fails as tensor_commit()
 * does, or with -ENOMEM. */
int tensor_group(struct state *st, struct client *c, uint64_t ref, uint32_t count,
		 const char **why);

/* Publishes the bytes of @ref, which @c must hold, under another name too. Fails as tensor_create()
 * and tensor_commit() do. */
int tensor_link(struct state *st, struct client *c, uint64_t ref, const struct name_key *name,
		const void *meta, uint16_t meta_len, uint64_t *version, const char **why);

/* STATE_E_NOT_FOUND, STATE_E_DENIED. */
int tensor_delete(struct state *st, const struct client *c, const struct name_key *key);
/* May @c publish or delete under that name? 0 or STATE_E_DENIED. */
int tensor_may_name(const struct state *st, const struct client *c, const struct name_key *name);

/* ---- for device.c ---- */

/* How many of its bytes do not fit the row. */
uint32_t description_extra(const struct tensor_description *d);
/* Writes it into a draft's row, and into the chunks that the draft set aside. */
void description_write(struct state *st, uint32_t slot, const struct tensor_description *d);
/* The name @index means @slot, which is no draft any more, from now on. */
void tensor_publish(struct state *st, const struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version);
/* The name @index, which means a tensor, means none from now on. */
void tensor_unname(struct state *st, uint32_t index);
