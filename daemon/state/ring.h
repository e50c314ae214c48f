/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings: a client publishes under one name again and again without asking us. A ring is some rows
 * of one name and one client, all alike, and a page that says which of them the name means. This
 * file has the page and the books; ring_end.h ends rings, and publish.h begins them.
 */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/ring_page.h"
#include "proto/ring_layout.h"

/*
 * Makes a ring of @c with an empty page. STATE_E_FULL: there are too many; -ENOMEM, -EMFILE,
 * -ENOSPC; or as account_take().
 */
int ring_new(struct state *st, struct client *c, struct ring **out);
/* It is over, and none of its rows is left. */
void ring_free(struct state *st, struct ring *ring);

/* It is @c's, which publishes to it, from now on. */
void ring_belongs(struct state *st, struct ring *ring, struct client *c);
/*
 * The ring with that index that a former daemon has left, and its page, as one that has ended and
 * has no rows. SEGMENT_E_STRANGE: the page is gone or damaged; or as charge_adopt().
 */
int ring_adopt(struct state *st, uint32_t index, int fd_take, struct ring **out);
/* That row, which says so, is one of it. */
void ring_has(struct state *st, struct ring *ring, uint32_t slot);

/* The row belongs to the ring from now on, as the one with that index. */
void ring_add(struct state *st, struct ring *ring, uint32_t slot);
/* The ring's slot was reclaimed. */
void ring_left(struct state *st, uint32_t slot);
/*
 * Nobody holds the RETIRED row any more. True: it is one of a ring that lives, and its producer's
 * again, without a message.
 */
bool ring_takes_back(struct state *st, uint32_t slot);

static inline uint64_t ring_ref(const struct ring *ring)
{
	return ring_ref_make(ring->generation, ring->index);
}

/* NULL: there is no such ring, or it has ended. @over: one that has rows is enough. */
struct ring *ring_find(const struct state *st, uint64_t ref, bool over);

/* The ring that began with @ref of @c, if nothing has happened to it yet; or NULL. */
struct ring *ring_begun(const struct state *st, const struct client *c, uint64_t ref);
/* Which row the page's word means; 0: none, or none that it may mean. */
uint64_t ring_meaning(const struct state *st, const struct ring *ring, uint64_t word);
/* The version of a row's tensor, also of one that was published without us. */
uint64_t ring_row_version(const struct state *st, uint32_t slot);
/* Somebody may sleep on the page's word from now on. */
void ring_watch(struct ring *ring);
