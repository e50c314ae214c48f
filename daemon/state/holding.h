/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holdings: which client has which segment mapped, or can map it with the descriptor that it was
 * given. Only a holder's leases in a segment count (PROTOCOL.md section 5, G4). So only the
 * holders' ledgers are read when a tensor in it is retired. All clients hold tensors without a
 * segment.
 */
#pragma once

#include "daemon/state/client.h"

struct holding {
	struct holding *chain;	      /* the next one in its bucket of state.holdings */
	struct list segment_link;     /* in segment.holdings or state.everyone: the oldest first */
	struct list client_link;      /* in client.holdings */
	struct client *client;	      /* NULL: it has ended */
	uint32_t segment, generation; /* CATALOG_NONE: tensors without a segment */
	uint32_t rows;		      /* RETIRED rows that stand here: their tensor.at is this */
};

/* @c holds @seg (NULL: tensors without a segment) from now on. Does nothing if it does already.
 * -ENOMEM, or an outcome of account_take(). */
int holding_make(struct state *st, struct client *c, struct segment *seg);
/* The same for a holding that a ledger shows at adoption, as account_adopt_stated(). */
int holding_adopt(struct state *st, struct client *c, struct segment *seg);
/* Ends *@looks holdings of @c. Rows that stand at them stay there until they move on. True: @c
 * holds nothing any more. */
bool holdings_leave(struct state *st, struct client *c, unsigned *looks);
/* Frees at most @most holdings of segments that have ended. True: there are more. */
bool holdings_bury(struct shared *sh, unsigned most);

/* The list of holdings along which the rows of @seg walk. */
static inline struct list *holdings_of(struct state *st, struct segment *seg)
{
	return seg ? &seg->holdings : &st->everyone;
}

/* To be called when a row moves on from the holding. */
void holding_left(struct holding *h);
