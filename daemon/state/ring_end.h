/* SPDX-License-Identifier: Apache-2.0 */
/* Retiring the rows of rings, and ending rings. */
#pragma once

#include "daemon/state/ring.h"

/* Retires @refs, which the producer's name does not mean any more. Refs that are not of its ring
 * are ignored. */
void ring_retire(struct state *st, struct client *c, uint64_t ref, const uint64_t *refs,
		 unsigned count);
/* Ends the ring: its name then means, as an ordinary name, the last tensor that its page named.
 * Further looks at ledgers are done in @a's steps. */
void ring_end(struct state *st, struct account *a, struct ring *ring);
/* Does only what comes after the last look at its rows: E4, and that rows which have a version need
 * the ring no more. May free it. */
void ring_ended(struct state *st, struct ring *ring);
/* Ends the name's ring, if it has one. */
void name_end_ring(struct state *st, struct account *a, uint32_t index);
/* Ends one ring to free space: of @a or, with @others, of any user. False: there is none. */
bool rings_free_space(struct state *st, struct account *a, bool others);
/* To be called when a request of @a was refused with @r. True: a ring was ended, and the request
 * may be tried again. *@ended counts these rings, from 0, and bounds how many one request ends. */
bool rings_yield(struct state *st, struct account *a, int r, unsigned *ended);
/* Ends at most *@looks rings of a client whose connection is over. True: it has no more. */
bool rings_leave(struct state *st, struct client *c, unsigned *looks);
