/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a tensor: it is created as a draft, published (publish.h) or aborted, retired
 * (lease.h) and reclaimed. */
#pragma once

#include "daemon/state/client.h"

struct tensor_request {
	uint64_t nbytes;
	uint32_t extra; /* bytes of shape and metadata that do not fit the row */
	bool prefetch;	/* the draft may be taken back while unused */
};

/*
 * Makes a draft for @c in *slot. STATE_E_BACKING: its segment has no object yet: create that
 * (object_create() with segment->object and size, on any thread), then call tensor_backed().
 * STATE_E_SOON, _FULL, _QUOTA: nothing was taken, ask again; STATE_E_NEVER, _TENSORS, _DRAFTS;
 * -ENOMEM, -ENOSPC.
 */
int tensor_create(struct state *st, struct client *c, const struct tensor_request *rq,
		  uint32_t *slot);
/* The object of the draft's segment was made, or could not be (@error). @c is NULL if its client is
 * gone. Returns @error. */
int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error);

/*
 * Frees room by taking back a warm segment or an unused prefetched draft of @user (NULL: of
 * anyone). ROOM_LATER: nothing could be taken back yet, but perhaps it can when a client's messages
 * have been read (tensor_messages_read()).
 */
enum room { ROOM_NONE, ROOM_MADE, ROOM_LATER };
enum room tensor_make_room(struct state *st, const struct quota_user *user);
/* All that @c has sent was read, so that a draft which could not be taken back before may be now.
 */
void tensor_messages_read(struct state *st, struct client *c);

/* Gives back a draft and the members of its group. Nothing happens if @c has no such draft. */
void tensor_abort(struct state *st, struct client *c, uint64_t ref);

/* No lease is left: the slot becomes FREE, and its memory goes where PROTOCOL.md section 6 says. */
void tensor_reclaim(struct state *st, uint32_t slot);

/* ---- for publish.c, device.c ---- */

/* Is @ref a draft of @c's? */
bool draft_find(const struct state *st, const struct client *c, uint64_t ref, uint32_t *slot);
/* Finds what was asked for when the draft was created, to ask for it again. False: @c has no such
 * draft, or it belongs to a group. */
bool draft_request(const struct state *st, const struct client *c, uint64_t ref,
		   struct tensor_request *rq);
/* The slot is no draft any more. What it set aside and did not use is given back. */
void draft_end(struct state *st, struct client *c, uint32_t slot);
/* Finds the index of the name, or makes one from what the draft set aside. STATE_E_BUCKET,
 * _TENSORS. */
int draft_take_name(struct state *st, uint32_t slot, const struct name_key *key, uint32_t *name);
/* Makes a draft without a place. draft_share() gives it the place of @with, which lives as long as
 * one of the two does. */
int draft_new_member(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot);
void draft_share(struct state *st, uint32_t slot, uint32_t with);
