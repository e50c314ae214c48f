/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor from CREATE to FREE: its row, its bytes and what they are charged to. It is created as a
 * draft, published (publish.h) or aborted, retired (lease.h) and reclaimed. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/extent.h"
#include "daemon/state/state.h"
#include "util/page.h"

struct tensor_request {
	uint64_t nbytes;
	uint32_t extra; /* bytes of shape and metadata that do not fit the row */
	bool prefetch;	/* the draft may be taken back while unused */
	bool own_pages; /* it gets a new segment, which is never reused */
	bool late;	/* do not wait for memory that is being given back */
	bool last;	/* the last attempt: free nothing for it, since that would be in vain */
	uint32_t evict_idle_s; /* do not evict tensors used in the last so many seconds */
};

/* The size of a segment for one tensor of @nbytes bytes: whole pages. */
static inline uint64_t tensor_pages(uint64_t nbytes)
{
	return page_ceil(nbytes);
}

/*
 * Makes a draft for @c in *slot. STATE_E_BACKING: its segment has no object yet. Create one
 * (storage->create() with segment->object and size, on any thread), hand it over with
 * segment_made(), then call tensor_backed().
 * STATE_E_SOON, _FULL, _QUOTA: nothing was taken, and the caller may ask again. Else
 * STATE_E_NEVER, _DRAFTS, -ENOMEM, -ENOSPC, or an outcome of account_take().
 */
int tensor_create(struct state *st, struct client *c, const struct tensor_request *rq,
		  uint32_t *slot);
/* To be called when the object of the draft's segment was made, or could not be (@error). In that
 * case the client's next segment for small tensors is half as large. @c is NULL if its client has
 * ended. Returns @error. */
int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error);

/*
 * Frees space for @size bytes that are not charged yet by taking back a warm segment or an unused
 * prefetched draft of @account or of any user. @refused is the outcome of their charge, or 0 if the
 * kernel lacks space: only memory that was in the way is freed. False: nothing can be taken back.
 */
bool tensor_free_space(struct state *st, struct account *account, uint64_t size, int refused);

/* Gives back a draft. One with members becomes c->group, and is given back in steps (publish.h).
 * Does nothing if @c has no such draft. */
void tensor_abort(struct state *st, struct client *c, uint64_t ref);

/* To be called when no lease is left: makes the slot FREE, and gives back its memory as
 * docs/protocol/leases.md, Segments, says. */
void tensor_reclaim(struct state *st, uint32_t slot);

/* Charges the RETIRED row to @account, whose client holds it, and its extent too if nothing else is
 * there. That may bring the account over its maximum. */
void tensor_charge_to(struct state *st, uint32_t slot, struct account *account);
/* Undoes tensor_charge_to(): charges the row to @account, which is its producer's, again. */
void tensor_charge_back(struct state *st, uint32_t slot, struct account *account);

/* ---- for draft.c, lease.c ---- */

void draft_give_up(struct state *st, struct client *c, uint32_t slot);
/* Lets the draft be taken back while it is unused; prefetch_try_back() tries to. */
void prefetched_add(struct state *st, struct client *c, struct tensor *t);
bool prefetch_try_back(struct state *st, struct client *c, uint32_t slot);

/* ---- for publish.c, device_tensor.c ---- */

/* Finds the draft @ref of @c. False: it has none. */
bool draft_find(const struct state *st, const struct client *c, uint64_t ref, uint32_t *slot);
/* Finds the request from which the draft was created, to repeat it. False: @c has no such draft, or
 * it belongs to a group. */
bool draft_request(const struct state *st, const struct client *c, uint64_t ref,
		   struct tensor_request *rq);
/* Takes over a row that a former daemon left: charges it to @account, with its @chunks. Fails as
 * account_adopt() does. */
int tensor_adopt(struct state *st, struct account *account, uint32_t slot, uint32_t chunks);
/* Checks that the segment is sealed, before the first tensor in it is published. STATE_E_INVALID
 * (why). */
int segments_seal(const struct state *st, uint32_t slot, const char **why);
int draft_reserve(struct state *st, uint32_t slot); /* -ENOSPC, -ENOMEM */
/* Keeps the empty segment for @writer, keeps it warm, or ends it. @writer is NULL if the segment no
 * longer has one. */
void segment_emptied(struct state *st, struct segment *seg, struct client *writer);
void draft_adopt(struct state *st, struct client *c, uint32_t slot);
/* Takes back drafts that @c does not use, once it has said that its ledger counts the used ones.
 * Looks at @budget drafts. True: there are more. */
bool drafts_doubt(struct state *st, struct client *c, unsigned budget);
/* Does the same for a closed client, which uses no more drafts than its ledger counts now. *@left
 * is at first the number of its drafts. Looks at *@budget of them. True: that was all. */
bool drafts_unbind(struct state *st, struct client *c, uint32_t *left, unsigned *budget);
/* Gives back one member of the group whose memory is @slot. True: there was no member, and the
 * draft itself was given back. */
bool draft_leave(struct state *st, struct client *c, uint32_t slot);
/* Makes the draft the memory of a group. */
void draft_grouped(struct state *st, struct client *c, uint32_t slot);
/* To be called when the slot is no draft any more: gives back unused reservations. */
void draft_end(struct state *st, struct client *c, uint32_t slot);
/* Finds the index of the name, or makes one from the draft's reservations. Returns STATE_E_BUCKET,
 * or an outcome of account_take(). */
int draft_take_name(struct state *st, uint32_t slot, const struct name_key *key, uint32_t *name);
/* Makes a draft without an extent. draft_share() gives it the extent of @with, which lives as long
 * as either of the two. */
int draft_new_member(struct state *st, struct client *c, const struct tensor_request *rq,
		     uint32_t *slot);
void draft_share(struct state *st, uint32_t slot, uint32_t with);
