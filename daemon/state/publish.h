/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes drafts under names, one or many in one step, and deletes names. */
#pragma once

#include "daemon/state/client.h"
#include "proto/description.h"

/* What a commit may begin besides: a ring. */
struct tensor_ring {
	const uint64_t *refs; /* of its other drafts */
	unsigned count;
	struct ring *ring; /* NULL: there is none */
};

/*
 * Publishes the draft @ref of @c, or a row that was written when its ring ended. The draft is
 * aborted if that fails: STATE_E_GONE, STATE_E_INVALID (why), STATE_E_DENIED, STATE_E_BUCKET.
 */
int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why);
int tensor_commit_ring(struct state *st, struct client *c, uint64_t ref,
		       const struct tensor_description *d, struct tensor_ring *ask,
		       uint64_t *version, const char **why);
/* Did a former daemon commit that draft of @c? It is there still if @c's ledger counts it. */
bool tensor_was_committed(const struct state *st, const struct client *c, uint64_t ref,
			  uint64_t *version);
/*
 * Makes a hidden tensor at @offset in the memory of the draft @ref, which becomes a group's. Fails
 * as tensor_commit() does, but only this member is aborted.
 */
int tensor_member(struct state *st, struct client *c, uint64_t ref, uint64_t offset,
		  const struct tensor_description *d, const char **why);

/* Publishes the bytes of @ref, which @c must hold, under another name too. Fails as tensor_create()
 * and tensor_commit() do. */
int tensor_link(struct state *st, struct client *c, uint64_t ref, const struct name_key *name,
		const void *meta, uint16_t meta_len, const struct tensor_lifetime *lifetime,
		uint64_t *version, const char **why);

/* STATE_E_NOT_FOUND, STATE_E_DENIED; STATE_E_GONE: @version is not 0, and the name means another.
 */
int tensor_delete(struct state *st, const struct client *c, const struct name_key *key,
		  uint64_t version);
/* May @c publish or delete under that name? 0 or STATE_E_DENIED. */
int tensor_may_name(struct state *st, const struct client *c, const struct name_key *name);

/* The ref of the tensor that the name means, or 0. A name that is pointed at a member of a group
 * may mean another tensor still (group.h). */
uint64_t name_meaning(struct state *st, uint32_t index);
/* If the slot has a member of a group that is published, that is LIVE afterwards. */
void tensor_settle(struct state *st, uint32_t slot);

/* ---- for group.c ---- */

int name_may_publish(struct state *st, const struct client *c, uint32_t index);
/* From the first tensor on that is published in it, a segment is sealed. STATE_E_INVALID (why). */
int memory_seal(const struct state *st, uint32_t slot, const char **why);
/* The member's name points at it; it means what it meant before until `groups` is raised. */
void leader_note(struct state *st, uint32_t slot, bool points);
void member_point(struct state *st, const struct client *c, uint32_t slot);
/* Ends a member that its name points at, which means what it meant before. */
void member_take_back(struct state *st, struct client *c, uint32_t slot);
/* Its group is published: the member becomes LIVE, or goes if it deletes its name, and what that
 * meant before is retired. */
void member_finish(struct state *st, uint32_t slot, unsigned *wakes);

/* ---- for device.c, expire.c, evict.c ---- */

/* The draft @ref, which is or becomes the memory of a group. STATE_E_GONE, STATE_E_INVALID (why).
 */
int member_leader(const struct state *st, const struct client *c, uint64_t ref, uint32_t *leader,
		  const char **why);
/* Makes a draft in the group of @leader and takes its name. It lies in that's memory if @shares.
 * None of it is visible. Fails as tensor_commit(). */
int member_new(struct state *st, struct client *c, uint32_t leader,
	       const struct tensor_description *d, uint64_t nbytes, bool shares, uint32_t *slot);

/* How many of its bytes do not fit the row. */
uint32_t description_extra(const struct tensor_description *d);
/* Writes it into a draft's row, and into the chunks that the draft set aside. */
void description_write(struct state *st, uint32_t slot, const struct tensor_description *d);
/* The name @index means @slot, which is no draft any more, from now on. */
void tensor_publish(struct state *st, struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version);
/* The name @index, which means a tensor, means none from now on; @a wants it so. */
void tensor_unname(struct state *st, struct account *a, uint32_t index);
/* The same, unless somebody holds the tensor: false. */
bool tensor_unname_unheld(struct state *st, uint32_t index);
