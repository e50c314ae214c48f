/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing drafts under names, one or many in one step, and forgetting names. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/name.h"
#include "proto/description.h"

/*
 * Publishes the draft @ref of @c. Whatever is wrong, the draft is aborted then: STATE_E_GONE,
 * STATE_E_INVALID (why), STATE_E_DENIED, STATE_E_BUCKET.
 */
int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why);
/*
 * Makes a hidden tensor in the memory of the draft @ref, which becomes a group's, at @offset of it.
 * As tensor_commit(), but only this member is given up.
 */
int tensor_member(struct state *st, struct client *c, uint64_t ref, uint64_t offset,
		  const struct tensor_description *d, const char **why);

/* Publishes the @count members of @ref in one step, or aborts them all. As tensor_commit();
 * -ENOMEM. */
int tensor_group(struct state *st, struct client *c, uint64_t ref, uint32_t count,
		 const char **why);

/* Publishes the bytes of @ref, which @c must hold, under another name too. As tensor_commit(). */
int tensor_link(struct state *st, struct client *c, uint64_t ref, const struct name_key *name,
		const void *meta, uint16_t meta_len, uint64_t *version, const char **why);

/* STATE_E_NOT_FOUND, STATE_E_DENIED. */
int tensor_delete(struct state *st, const struct client *c, const struct name_key *key);
/* May @c publish or delete under that name? 0 or STATE_E_DENIED. */
int tensor_may_name(const struct state *st, const struct client *c, const struct name_key *name);

/* ---- for device.c ---- */

/* Bytes that the row has no room for. */
uint32_t description_extra(const struct tensor_description *d);
/* Into the row and chunks of a draft that set them aside. */
void description_write(struct state *st, uint32_t slot, const struct tensor_description *d);
/* What was a draft is what the name @index means, from now on. */
void tensor_publish(struct state *st, const struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version);
/* The name @index, which means a tensor, means none any more. */
void tensor_unname(struct state *st, uint32_t index);
