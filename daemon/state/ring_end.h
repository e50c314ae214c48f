/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a ring's rows: retired by their producer, and the end of a ring. */
#pragma once

#include "daemon/state/ring.h"

/* The producer's name does not mean @refs any more. Those that are not its ring's are ignored. */
void ring_retire(struct state *st, struct client *c, uint64_t ref, const uint64_t *refs,
		 unsigned count);
/*
 * The ring is over: its name means, as any name does, what its page said last. What has to be
 * looked at because of that is @a's.
 */
void ring_end(struct state *st, struct account *a, struct ring *ring);
/* Only the last step of that, E4. */
void ring_ended(struct state *st, const struct ring *ring);
/* If the name has a ring, that ends. */
void name_end_ring(struct state *st, struct account *a, uint32_t index);
/* Memory is wanted: ends one ring of @a or, with @others, of anyone. False: there is none. */
bool rings_make_room(struct state *st, struct account *a, bool others);
/*
 * A request of @a was refused with @r: true if a ring was given up because of that, so that it may
 * be tried again. *@ended counts them, from 0, and bounds how many one request ends.
 */
bool rings_yield(struct state *st, struct account *a, int r, unsigned *ended);
/* Ends at most *@looks rings of a client whose connection is over. True: it has none any more. */
bool rings_leave(struct state *st, struct client *c, unsigned *looks);
