/* SPDX-License-Identifier: Apache-2.0 */
/* Rings: a client publishes under one name again and again without the daemon. A ring is a set of
 * like rows of one name and one client, and a page that says which row the name means. ring.c keeps
 * the rings' data, ring_end.c ends rings, and publish.h begins them. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/ring_page.h"
#include "proto/ring_layout.h"

/*
 * Makes a ring of @c with an empty page. STATE_E_RINGS: there are too many; -ENOMEM, -EMFILE,
 * -ENOSPC; or as account_take().
 */
int ring_new(struct state *st, struct client *c, struct ring **out);
/* To be called when the ring is over and none of its rows needs it. */
void ring_free(struct state *st, struct ring *ring);

/* Makes @c the producer of the ring, which may publish to it from now on. */
void ring_belongs(struct state *st, struct ring *ring, struct client *c);
/*
 * Takes over the ring that a former daemon left at that index, with its page, as an ended ring
 * without rows. Returns SEGMENT_E_STRANGE if the page is missing or damaged; else as
 * charge_adopt().
 */
int ring_adopt(struct state *st, uint32_t index, int fd_take, struct ring **out);
/* The same for @ring, whose size and stream are set; it is freed on failure. */
int ring_adopt_as(struct state *st, uint32_t index, int fd_take, struct ring *ring);
/* Adds an adopted row to the ring that the row names. */
void ring_has(struct state *st, struct ring *ring, uint32_t slot);

/* Makes the row a slot of the ring, in the next free one. */
void ring_add(struct state *st, struct ring *ring, uint32_t slot);
/* To be called when the row was reclaimed, or does not need its ring any more because the ring is
 * over and the row has its version. Frees a ring that is over and has no other row. */
void ring_left(struct state *st, uint32_t slot);
/* To be called when nobody holds the RETIRED row any more. True: it belongs to a ring that lives,
 * and its producer may use it again, without a message. */
bool ring_takes_back(struct state *st, uint32_t slot);
/* True if the RETIRED row will be its producer's again. */
bool ring_keeps(const struct state *st, uint32_t slot);

static inline uint64_t ring_ref(const struct ring *ring)
{
	return ring_ref_make(ring->generation, ring->index) | (ring->stream ? REF_STREAM : 0);
}

/* ---- for stream.c ---- */

void ring_init(struct ring *ring);
/* Gives @ring, whose size and stream are set, an index of @c's user and an empty page. Fails as
 * ring_new(). */
int ring_take_index(struct state *st, const struct client *c, struct ring *ring);
/* Frees a ring for which ring_take_index() was called, with or without success. */
void ring_untake(struct state *st, struct ring *ring);
/* Keeps the ring's page for the next daemon, with the fact @with, whose generation, uid and pid are
 * set here. */
int ring_survives_as(struct state *st, const struct ring *ring, const struct ring_fact *with);
/* Writes the row's checksum as one of a ring, in that generation. */
void ring_row_resum(struct state *st, uint32_t slot, uint64_t generation);

/* The ring @ref, or NULL if there is none or it has ended. With @over an ended ring is found too if
 * it has rows. */
struct ring *ring_find(const struct state *st, uint64_t ref, bool over);

/* The ring of @c that began with the draft @ref, if nothing has happened to it yet; or NULL. */
struct ring *ring_begun(const struct state *st, const struct client *c, uint64_t ref);
/* The row that the page's word means; 0: none, or one that it may not mean. */
uint64_t ring_meaning(const struct state *st, const struct ring *ring, uint64_t word);
/* The version of a row's tensor, even if it was published without the daemon. */
uint64_t ring_row_version(const struct state *st, uint32_t slot);
/* To be called before somebody sleeps on the page's word. */
void ring_watch(struct ring *ring);

/* Retiring the rows of rings, and ending rings. */

/* Retires @refs, which the producer's name does not mean any more. Refs that are not of its ring
 * are ignored. */
void ring_retire(struct state *st, struct client *c, uint64_t ref, const uint64_t *refs,
		 unsigned count);
/* Ends the ring: its name then means, as an ordinary name, the last tensor that its page named.
 * Further looks at ledgers are done in @a's steps. */
void ring_end(struct state *st, struct account *a, struct ring *ring);
/* Does only the last part of ring_end(): E4, and rows that have a version leave the ring. May free
 * the ring. */
void ring_ended(struct state *st, struct ring *ring);
/* Ends the name's ring, if it has one. */
void name_end_ring(struct state *st, struct account *a, uint32_t index);
/* Ends one ring of @a, or with @others of any user, to free space. False: there is none. */
bool rings_free_space(struct state *st, struct account *a, bool others);
/* To be called when a request of @a was refused with @r. True: a ring was ended, and the request
 * may be tried again. *@ended counts the rings that one request ended, from 0, so that there are
 * not too many. */
bool rings_yield(struct state *st, struct account *a, int r, unsigned *ended);
/* Ends at most *@budget rings of a client whose connection is over. True: it has no more. */
bool rings_leave(struct state *st, struct client *c, unsigned *budget);
