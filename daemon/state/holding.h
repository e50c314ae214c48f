/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holdings: which client has which segment mapped, or could have, since it was given what opens it.
 * Only holders can have leases in a segment that count (PROTOCOL.md section 5, G4), so only they
 * are looked at when a tensor in it is retired. Tensors without a segment are held by everybody.
 */
#pragma once

#include "daemon/state/client.h"

struct holding {
	struct holding *chain;	      /* the next one in its bucket of state.holdings */
	struct list segment_link;     /* in segment.holdings or state.everyone: the oldest first */
	struct list client_link;      /* in client.holdings */
	struct client *client;	      /* NULL: it has ended */
	uint32_t segment, generation; /* CATALOG_NONE: tensors without a segment */
	uint32_t rows;		      /* RETIRED ones that stand here: tensor.at is this */
};

/* @c holds @seg (NULL: what has no segment) from now on. Nothing happens if it does already.
 * -ENOMEM, or what account_take() returns. */
int holding_make(struct state *st, struct client *c, struct segment *seg);
/* @c holds *@looks segments less from now on. Rows that stand at its holdings stay there until they
 * move on. True: it holds nothing any more. */
bool holdings_leave(struct state *st, struct client *c, unsigned *looks);
/* Frees at most @most holdings of segments that have ended. True: there are more. */
bool holdings_bury(struct shared *sh, unsigned most);

/* The holdings at which tensors in @seg stand one after the other. */
static inline struct list *holdings_of(struct state *st, struct segment *seg)
{
	return seg ? &seg->holdings : &st->everyone;
}

/* One row less stands at the holding. */
void holding_left(struct holding *h);
