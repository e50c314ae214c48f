/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing: drafts become what names mean, one by one (publish.c) or many in one step (group.c).
 * Also links a tensor to a further name, and deletes names. */
#pragma once

#include "daemon/state/client.h"
#include "proto/description.h"
#include "proto/wire.h"

/* A ring that a commit may begin at the same time. */
struct tensor_ring {
	const uint64_t *refs; /* of the ring's other drafts */
	unsigned count;
	struct ring *ring; /* the ring that was begun; NULL: none */
};

/* Publishes the draft @ref of @c, or a row that its producer wrote while its ring ended. If that
 * fails, tensor_commit() aborts the draft: STATE_E_STALE, _INVALID (why) or _BUCKET, or a failure
 * of tensor_may_publish(). */
int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why);
int tensor_commit_ring(struct state *st, struct client *c, uint64_t ref,
		       const struct tensor_description *d, struct tensor_ring *ask,
		       uint64_t *version, const char **why);
/* True if a former daemon committed that draft of @c. The row stays while @c's ledger counts it. */
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
/* The slot of @ref, if it is published and @c holds it and may publish its bytes as d->name, too.
 * STATE_E_STALE, STATE_E_INVALID (why) for a bad name, or a failure of tensor_may_publish(). */
int link_source(struct state *st, struct client *c, uint64_t ref,
		const struct tensor_description *d, uint32_t *from, const char **why);
/* True if @ref is LIVE or RETIRED. */
bool ref_is_published(const struct state *st, uint64_t ref);
/* Completes @d, which has a name, metadata and a lifetime, with the type and shape of the tensor in
 * @slot. Afterwards @d points into *@dims. */
void link_describe(struct tensor_description *d, struct link_dims *dims, const struct state *st,
		   uint32_t slot);

/* Makes the name mean nothing. Returns STATE_E_NOT_FOUND, STATE_E_DENIED, or STATE_E_STALE if
 * @version is not 0 and not the version of the name's tensor. */
int tensor_delete(struct state *st, const struct client *c, const struct name_key *key,
		  uint64_t version);
/* Returns 0 if @c may publish or delete under that name, else STATE_E_DENIED. */
int tensor_may_name(struct state *st, const struct client *c, const struct name_key *name);
/* Returns 0 if @c may publish @d now. Fails as tensor_may_name(), or because of the version that
 * was stated: STATE_E_MIRROR, or STATE_E_OLD or _INVALID (why). */
int tensor_may_publish(struct state *st, struct client *c, const struct tensor_description *d,
		       const char **why);

/* The ref of the tensor that the name means, or 0. While a name points at a pending member of a
 * group it means its former tensor. */
uint64_t name_meaning(struct state *st, uint32_t index);
/* Makes the row LIVE if it is a member of a group that is published. */
void tensor_finish(struct state *st, uint32_t slot);

/* ---- for group.c ---- */

int name_may_publish(struct state *st, const struct client *c, uint32_t index);
/* Does what tensor_may_publish() does, for a member at which its name does not point yet. */
int member_may_publish(struct state *st, struct client *c, uint32_t slot, const char **why);
/* Notes in the entry of the group's memory @slot that the names of the members are going to be
 * pointed, or with @points false that the group has failed. */
void leader_note(struct state *st, uint32_t slot, bool points);
/* P2: points the member's name at it. The name keeps its former meaning until P3. */
void member_point(struct state *st, const struct client *c, uint32_t slot);
/* Takes back a member at which its name points. The name keeps its former meaning. */
void member_take_back(struct state *st, struct client *c, uint32_t slot);
/* To be called when the member's group is published: makes the member LIVE, or ends it if it
 * deletes its name, and retires the name's former tensor. */
void member_finish(struct state *st, uint32_t slot, unsigned *wakes);

/* ---- for device_tensor.c, expire.c ---- */

/* Finds the draft @ref as the memory of a group, which it may become now. STATE_E_STALE,
 * STATE_E_INVALID (why). */
int member_leader(const struct state *st, const struct client *c, uint64_t ref, uint32_t *leader,
		  const char **why);
/* Makes a draft in the group of @leader and takes its name. With @shares it lies in the leader's
 * memory. Clients see none of it. Fails as tensor_commit() does. */
int member_new(struct state *st, struct client *c, uint32_t leader,
	       const struct tensor_description *d, uint64_t nbytes, bool shares, uint32_t *slot);

/* How many bytes of the description do not fit the row. */
uint32_t description_extra(const struct tensor_description *d);
/* Writes the description into a draft's row, and into the chunks that the draft set aside. */
void description_write(struct state *st, uint32_t slot, const struct tensor_description *d);
/* Makes the name @index mean @slot, which is no draft any more. */
void tensor_publish(struct state *st, struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version);
/* Makes the name of the LIVE row @slot mean nothing, in the steps of @a. If a group that is
 * published has given the name another tensor, the name keeps that, and the row is retired as the
 * former tensor. */
void tensor_unname(struct state *st, struct account *a, uint32_t slot);
/* Does the same, but only if nobody holds the tensor and no group is about to retire it. False:
 * nothing was done. */
bool tensor_unname_unheld(struct state *st, uint32_t slot);

/*
 * Groups: up to WIRE_GROUP_MAX members that are published in one step for all readers, though it
 * takes the daemon many. Meanwhile the client that asked is busy with it (client.group), and its
 * next messages wait. Messages of other clients do not wait, even if they concern the same names.
 */

/*
 * Begins to publish the @count members of @ref. If that fails, as tensor_commit() does or with
 * -ENOMEM, none of them is published in the end. STATE_E_STALE: @c has no such draft, and nothing
 * begins.
 */
int group_begin(struct state *st, struct client *c, uint64_t ref, uint32_t count);
/*
 * Goes on by about @budget members. True: *@error (with *@why) is the outcome, which the client can
 * be told. This may be true for several calls: the group's memory is given up only after its client
 * could be told, because it shows a daemon that starts in between that the group was published.
 * Also goes on with a group that tensor_abort() gives up.
 */
bool group_step(struct state *st, struct client *c, unsigned budget, int *error, const char **why);

/* True if a former daemon published the group, so that the request needs only an answer. */
bool group_was_published(const struct state *st, const struct client *c, uint64_t ref);

static inline bool group_goes_on(const struct client *c)
{
	return c->group.phase != GROUP_NONE;
}

/* The connection has ended: takes the group back unless it is published already. True: it is
 * over. */
bool group_leave(struct state *st, struct client *c, unsigned *budget);

/* Tensors that lie in exported memory of a device. docs/protocol/devices.md. */

struct device_placed {
	uint64_t ref, version;
};

/* Publishes a tensor in exported memory. Returns STATE_E_NOT_FOUND if there is no such segment,
 * STATE_E_NOTICES, or an outcome of tensor_commit() or tensor_create(). */
int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed,
		 const char **why);
/* Makes a member of the group of the draft @ref, as tensor_member() does. *@member is 0 if a former
 * daemon has published the group. Fails as device_place(). */
int device_member(struct state *st, struct client *c, uint64_t ref, const struct wire_place *m,
		  const struct tensor_description *d, uint64_t *member, const char **why);
/* True if @ref is a tensor on a device. */
bool device_has(const struct state *st, uint64_t ref);
/* Does for a tensor on a device what tensor_link() does. The device must have finished the tensor
 * (STATE_E_INVALID, why). The producer is told FREED when nobody uses either of the two tensors. */
int device_link(struct state *st, struct client *c, uint64_t ref, struct tensor_description *d,
		uint64_t *version, const char **why);
/* Notes that the device has finished the tensor, or has @failed. Does nothing unless @ref is an
 * unfinished tensor of @c. */
void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed);

/*
 * Ends the imports and exports of @c, whose connection has ended. Tensors that it placed are lost
 * if their memory dies with it or was never finished. Its notices are dropped. Handles *@budget of
 * these; true: that was all.
 */
bool device_leave(struct state *st, struct client *c, unsigned *budget);
