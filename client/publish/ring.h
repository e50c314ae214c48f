/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings that this process publishes to. A draft that the ring has a slot for needs no daemon, nor
 * does its commit. proto/ring_layout.h has the page, docs/protocol/rings.md the steps.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/publish/draft.h"

/* Gives @draft a slot of the ring of its name, if there is one of its type and shape. True if it
 * did: the draft is linked, and is the caller's as after draft_granted(). */
bool ring_take(struct session *s, struct tl_draft *draft, const struct draft_request *request);

/* Copies and publishes a small tensor, if the name has a ring of its type and shape and a slot is
 * free. Returns 0, a negative errno, or RING_E_NONE: nothing has happened. */
int ring_put(struct session *s, const char *name, size_t name_len, const DLTensor *source,
	     const tl_put_options *o, uint64_t *version);

/* Publishes a draft of a ring with that metadata. Returns 0, a negative errno, or RING_E_OVER: it
 * is still a draft. */
int ring_publish(struct tl_draft *draft, const void *metadata, size_t size, uint64_t *version);
/* Takes a draft of a ring out of its slot. It is not in the session's list any more. */
void ring_leave(struct tl_draft *draft);
/* True if the draft was made for this name and shape, so that it may be published as such. */
bool ring_fits(const struct tl_draft *draft, const DLTensor *as, uint64_t flags, const char *name,
	       size_t name_len);

/* To be called before another tensor is published under the name by a message: later ones must not
 * overtake that message through a ring that the daemon has not ended yet. Also lets go of other
 * rings that have ended. */
void ring_forget(struct session *s, const char *name, size_t name_len);
/* Lets go of rings that the daemon has ended: their memory is not free before that. Does nothing if
 * another thread publishes. */
void rings_let_go(struct session *s);

/* Returns how many slots the ring should have that begins with this commit of @draft, or 0 for no
 * ring. */
unsigned ring_depth_for(struct tl_draft *draft, const struct tensor_description *d);

/* Commits the draft, and begins a ring. Returns as draft_commit() does, or RING_E_NONE. */
int ring_begin(struct tl_draft *draft, const struct tensor_description *d, unsigned depth,
	       uint64_t *version);

/* A tensor of a ring that begins, in memory of which the caller has a use. */
struct ring_part {
	uint64_t ref;
	struct write_map *map;
	void *data;
};

/* Takes the granted ring, which is ours once its page is mapped, and the uses of @parts; the first
 * is published. If the page cannot be mapped, the next commit ends the ring. */
void ring_granted(struct session *s, const struct wire_granted *g, int fd,
		  const struct tensor_description *d, const struct ring_part *parts, unsigned n);
/* Notes that no ring was to be had. */
void ring_refused(struct session *s);

/* For tl_close(): ends the rings, and all writable mappings but those of drafts. */
void rings_close(struct session *s);
/* rings_end() is for the end of the session, rings_fork() for a forked child, whose rings are its
 * parent's. */
void rings_end(struct session *s);
void rings_fork(struct session *s);
