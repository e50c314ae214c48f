/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor's life: created as a draft, published (publish.h) or aborted, retired (lease.h),
 * reclaimed. */
#pragma once

#include "daemon/state/client.h"

struct tensor_request {
	uint64_t nbytes;
	uint32_t extra; /* bytes of shape and metadata beyond the row */
	bool prefetch;	/* may be taken back while unused */
};

/*
 * A draft for @c in *slot. STATE_E_BACKING: its segment has no object yet: make it (object_create()
 * with segment->object and size, on any thread), then tensor_backed(). STATE_E_SOON, _FULL, _QUOTA:
 * nothing was taken, ask again; STATE_E_NEVER, _TENSORS, _DRAFTS; -ENOMEM, -ENOSPC.
 */
int tensor_create(struct state *st, struct client *c, const struct tensor_request *rq,
		  uint32_t *slot);
/* The object of the draft's segment was made (@error 0), or not; @c NULL: its client is gone.
 * Passes @error on. */
int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error);

/*
 * Frees room by taking back what nobody uses: a warm segment or an unused prefetched draft (of
 * @user only, or of anyone). ROOM_LATER: nothing yet, but perhaps when a client's messages have
 * been read (tensor_messages_read()).
 */
enum room { ROOM_NONE, ROOM_MADE, ROOM_LATER };
enum room tensor_make_room(struct state *st, const struct quota_user *user);
/* All that @c has sent was read: what could not be taken back because of that may be now. */
void tensor_messages_read(struct state *st, struct client *c);

/* Gives a draft back, and the members of its group. Nothing happens if it is none of @c's. */
void tensor_abort(struct state *st, struct client *c, uint64_t ref);

/* No lease is left: its memory goes where PROTOCOL.md section 6 says. For lease.c. */
void tensor_reclaim(struct state *st, uint32_t slot);

/* ---- for publish.c, device.c ---- */

/* Is @ref a draft of @c's? */
bool draft_find(const struct state *st, const struct client *c, uint64_t ref, uint32_t *slot);
/* What was asked for when it was created, to ask for it again; false: it is none of @c's. */
bool draft_request(const struct state *st, const struct client *c, uint64_t ref,
		   struct tensor_request *rq);
/* It is no draft any more; what it set aside and did not use goes back. */
void draft_end(struct state *st, struct client *c, uint32_t slot);
/* Finds or makes the index of the name, with what the draft set aside. STATE_E_BUCKET, _TENSORS. */
int draft_take_name(struct state *st, uint32_t slot, const struct name_key *key, uint32_t *name);
/* A draft without a place; draft_share() gives it that of @with, which lives as long as one of them
 * does. */
int draft_new_member(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot);
void draft_share(struct state *st, uint32_t slot, uint32_t with);
