/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a tensor: it is created as a draft, published (publish.h) or aborted, retired
 * (lease.h) and reclaimed. */
#pragma once

#include "daemon/state/client.h"

struct tensor_request {
	uint64_t nbytes;
	uint32_t extra; /* bytes of shape and metadata that do not fit the row */
	bool prefetch;	/* the draft may be taken back while unused */
	bool own_pages; /* in a new segment that is not used again */
};

/*
 * Makes a draft for @c in *slot. STATE_E_BACKING: its segment has no object yet: create that
 * (storage->create() with segment->object and size, on any thread), hand it over by segment_made(),
 * then call tensor_backed().
 * STATE_E_SOON, _FULL, _QUOTA: nothing was taken, ask again; STATE_E_NEVER, _DRAFTS; -ENOMEM,
 * -ENOSPC, or what account_take() returns.
 */
int tensor_create(struct state *st, struct client *c, const struct tensor_request *rq,
		  uint32_t *slot);
/* The object of the draft's segment was made, or could not be (@error). @c is NULL if its client is
 * gone. Returns @error. */
int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error);

/*
 * Frees room for @size bytes by taking back a warm segment or an unused prefetched draft: of
 * @account, or with @others of anyone. ROOM_LATER: nothing could be taken back yet, but perhaps it
 * can when a client's messages have been read (tensor_messages_read()).
 */
enum room { ROOM_NONE, ROOM_MADE, ROOM_LATER };
enum room tensor_make_room(struct state *st, const struct account *account, uint64_t size,
			   bool others);
/* All that @c has sent was read, so that a draft which could not be taken back before may be now.
 */
void tensor_messages_read(struct state *st, struct client *c);

/* Gives back a draft; one with members becomes c->group, which is given back in steps (group.h).
 * Nothing happens if @c has no such draft. */
void tensor_abort(struct state *st, struct client *c, uint64_t ref);

/* No lease is left: the slot becomes FREE, and its memory goes where PROTOCOL.md section 6 says. */
void tensor_reclaim(struct state *st, uint32_t slot);

/* The RETIRED row is kept by a client of @account, which is charged for it from now on, and for its
 * place if nothing else is there. That may bring the account over its maximum. */
void tensor_charge_to(struct state *st, uint32_t slot, struct account *account);

/* ---- for draft.c ---- */

void draft_into_ring(struct state *st, struct client *c, uint32_t slot);
void draft_give_up(struct state *st, struct client *c, uint32_t slot);
/* The draft may be taken back from now on, if it is unused; tries to. */
void prefetched_add(struct state *st, struct client *c, struct tensor *t);
enum room prefetch_try_back(struct state *st, struct client *c, uint32_t slot);

/* ---- for publish.c, device.c ---- */

/* Is @ref a draft of @c's? */
bool draft_find(const struct state *st, const struct client *c, uint64_t ref, uint32_t *slot);
/* Finds what was asked for when the draft was created, to ask for it again. False: @c has no such
 * draft, or it belongs to a group. */
bool draft_request(const struct state *st, const struct client *c, uint64_t ref,
		   struct tensor_request *rq);
/*
 * A row that a former daemon left: charges it to @account, and counts @chunks that it has. A draft
 * is that of @c. Fails as account_adopt().
 */
int tensor_adopt(struct state *st, struct account *account, uint32_t slot, uint32_t chunks);
int draft_reserve(struct state *st, uint32_t slot); /* -ENOSPC, -ENOMEM */
/* Nothing is in @seg any more: it is kept for @writer (NULL: nobody has it), kept warm, or ends. */
void segment_emptied(struct state *st, struct segment *seg, struct client *writer);
void draft_adopt(struct state *st, struct client *c, uint32_t slot);
/* Takes back those that @c does not use, when it has said that its ledger counts the others. Looks
 * at so many; is there one that was not looked at? */
bool drafts_doubt(struct state *st, struct client *c, unsigned looks);
/* Gives back one member of the group whose memory @slot is, or, if it has none, that draft: true.
 */
bool draft_leave(struct state *st, struct client *c, uint32_t slot);
/* The draft is the memory of a group from now on. */
void draft_grouped(struct state *st, struct client *c, uint32_t slot);
/* The slot is no draft any more. What it set aside and did not use is given back. */
void draft_end(struct state *st, struct client *c, uint32_t slot);
/* Finds the index of the name, or makes one from what the draft set aside. STATE_E_BUCKET, or what
 * account_take() returns. */
int draft_take_name(struct state *st, uint32_t slot, const struct name_key *key, uint32_t *name);
/* Makes a draft without a place. draft_share() gives it the place of @with, which lives as long as
 * one of the two does. */
int draft_new_member(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot);
void draft_share(struct state *st, uint32_t slot, uint32_t with);
