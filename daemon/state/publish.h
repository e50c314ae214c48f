/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes drafts under names, one or many in one step, and deletes names. */
#pragma once

#include "daemon/state/client.h"
#include "proto/description.h"

/* A ring that a commit may begin as well. */
struct tensor_ring {
	const uint64_t *refs; /* of the ring's other drafts */
	unsigned count;
	struct ring *ring; /* NULL: there is none */
};

/* Publishes the draft @ref of @c, or a row that its producer wrote while its ring ended. If that
 * fails, tensor_commit() aborts the draft: STATE_E_STALE, _INVALID (why), _DENIED or _BUCKET. */
int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why);
int tensor_commit_ring(struct state *st, struct client *c, uint64_t ref,
		       const struct tensor_description *d, struct tensor_ring *ask,
		       uint64_t *version, const char **why);
/* True if a former daemon committed that draft of @c. The row is still there if @c's ledger counts
 * it. */
bool tensor_was_committed(const struct state *st, const struct client *c, uint64_t ref,
			  uint64_t *version);
/* Makes a hidden tensor at @offset in the memory of the draft @ref, which becomes a group's memory.
 * Fails as tensor_commit() does, but aborts only this member. */
int tensor_member(struct state *st, struct client *c, uint64_t ref, uint64_t offset,
		  const struct tensor_description *d, const char **why);

/* Publishes the bytes of @ref, which @c must hold, under a further name. Fails as tensor_create()
 * and tensor_commit() do. */
int tensor_link(struct state *st, struct client *c, uint64_t ref, struct tensor_description *d,
		uint64_t *version, const char **why);

/* ---- for device_tensor.c ---- */

/* Shape and strides of a published tensor. */
struct link_dims {
	int64_t shape[TENSOR_NDIM_MAX], strides[TENSOR_NDIM_MAX];
};
/* The slot of @ref, if it is published, and @c holds it and may have it charged under @name too.
 * STATE_E_STALE, STATE_E_INVALID (why) for a bad name, or a failure of tensor_may_name(). */
int link_source(struct state *st, const struct client *c, uint64_t ref, const struct name_key *name,
		uint32_t *from, const char **why);
/* True if @ref is LIVE or RETIRED. */
bool ref_is_published(const struct state *st, uint64_t ref);
/* Completes @d, which has a name, metadata and a lifetime, with what the two tensors have in
 * common. It refers to *@dims. */
void link_describe(struct tensor_description *d, struct link_dims *dims, const struct state *st,
		   uint32_t slot);

/* Returns STATE_E_NOT_FOUND, STATE_E_DENIED, or STATE_E_STALE if @version is not 0 and not the
 * version of the name's tensor. */
int tensor_delete(struct state *st, const struct client *c, const struct name_key *key,
		  uint64_t version);
/* Returns 0 if @c may publish or delete under that name, else STATE_E_DENIED. */
int tensor_may_name(struct state *st, const struct client *c, const struct name_key *name);

/* The ref of the tensor that the name means, or 0. While a name points at a pending member of a
 * group it means its former tensor (group.h). */
uint64_t name_meaning(struct state *st, uint32_t index);
/* Makes the slot LIVE if it has a member of a group that is published. */
void tensor_finish(struct state *st, uint32_t slot);

/* ---- for group.c ---- */

int name_may_publish(struct state *st, const struct client *c, uint32_t index);
/* Seals a segment when the first tensor in it is published. STATE_E_INVALID (why). */
int memory_seal(const struct state *st, uint32_t slot, const char **why);
/* The member's name points at it, and keeps its former meaning until `groups` is raised. */
void leader_note(struct state *st, uint32_t slot, bool points);
void member_point(struct state *st, const struct client *c, uint32_t slot);
/* Ends a member that its name points at. The name keeps its former meaning. */
void member_take_back(struct state *st, struct client *c, uint32_t slot);
/* Its group is published: makes the member LIVE, or ends it if it deletes its name, and retires the
 * name's former tensor. */
void member_finish(struct state *st, uint32_t slot, unsigned *wakes);

/* ---- for device_tensor.c, expire.c, evict.c ---- */

/* Finds the draft @ref as the memory of a group, which it may become now. STATE_E_STALE,
 * STATE_E_INVALID (why). */
int member_leader(const struct state *st, const struct client *c, uint64_t ref, uint32_t *leader,
		  const char **why);
/* Makes a draft in the group of @leader and takes its name. With @shares it lies in the leader's
 * memory. None of it is visible. Fails as tensor_commit() does. */
int member_new(struct state *st, struct client *c, uint32_t leader,
	       const struct tensor_description *d, uint64_t nbytes, bool shares, uint32_t *slot);

/* How many bytes of the description do not fit the row. */
uint32_t description_extra(const struct tensor_description *d);
/* Writes the description into a draft's row, and into the chunks that the draft set aside. */
void description_write(struct state *st, uint32_t slot, const struct tensor_description *d);
/* Makes the name @index mean @slot, which is no draft any more. */
void tensor_publish(struct state *st, struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version);
/* Makes the name of the LIVE row @slot mean none, at the cost of @a. If it means another tensor, by
 * a group that is published, that stays, and the row is retired as the group's former one. */
void tensor_unname(struct state *st, struct account *a, uint32_t slot);
/* The same, if nobody holds the tensor and no group is about to retire it. False: nothing was done.
 */
bool tensor_unname_unheld(struct state *st, uint32_t slot);
