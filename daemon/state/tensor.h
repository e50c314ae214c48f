/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor's life: created as a draft, committed or aborted, retired (lease.h), reclaimed. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/name.h"

struct tensor_request {
	uint64_t nbytes;
	uint32_t extra; /* bytes of shape and metadata beyond the row */
	bool ahead;	/* may be taken back while unused */
};

/*
 * A draft for @c in *slot. STATE_E_BACKING: its segment has no object yet: make it (object_create() with
 * segment->object and size, on any thread), then tensor_backed(). STATE_E_SOON, _FULL, _QUOTA: nothing was taken,
 * ask again; STATE_E_NEVER, _TENSORS, _DRAFTS; -ENOMEM, -ENOSPC.
 */
int tensor_create(struct state *st, struct client *c, const struct tensor_request *rq, uint32_t *slot);
/* The object of the draft's segment was made (@error 0), or not; @c NULL: its client is gone. Passes @error on. */
int tensor_backed(struct state *st, struct client *c, uint32_t slot, int error);

/* Frees room by taking back what nobody uses: a warm segment or an unused ahead draft (of @user only, or of anyone). */
bool tensor_make_room(struct state *st, const struct quota_user *user);

struct tensor_description {
	uint8_t dtype_code, dtype_bits;
	uint16_t dtype_lanes;
	uint8_t ndim, flags;
	uint16_t meta_len;
	const int64_t *shape;
	const void *meta;
	struct name_key name;
};

/*
 * Publishes the draft @ref of @c. Whatever is wrong, the draft is aborted then: STATE_E_GONE, STATE_E_INVALID (why),
 * STATE_E_DENIED, STATE_E_BUCKET.
 */
int tensor_commit(struct state *st, struct client *c, uint64_t ref, const struct tensor_description *d,
		  uint64_t *version, const char **why);
void tensor_abort(struct state *st, struct client *c, uint64_t ref);

/* Publishes the bytes of @ref, which @c must hold, under another name too. As tensor_commit(). */
int tensor_link(struct state *st, struct client *c, uint64_t ref, const struct name_key *name, const void *meta,
		uint16_t meta_len, uint64_t *version, const char **why);

/* STATE_E_NOT_FOUND, STATE_E_DENIED. */
int tensor_delete(struct state *st, const struct client *c, const struct name_key *name);
/* May @c publish or delete under that name? 0 or STATE_E_DENIED. */
int tensor_may_name(const struct state *st, const struct client *c, const struct name_key *name);

/* No lease is left: its memory goes where PROTOCOL.md section 6 says. For lease.c. */
void tensor_reclaim(struct state *st, uint32_t slot);

/* The segment's mapping is worth nothing any more; its object is to be destroyed. */
void tensor_end_segment(struct state *st, struct segment *seg);
/* After its object is destroyed. */
void tensor_free_segment(struct state *st, struct segment *seg);
