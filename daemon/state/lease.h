/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: which tensors are in use, by the ledgers of the clients that hold their segments. */
#pragma once

#include "daemon/state/client.h"

/*
 * T1, T2: allows no new leases on a LIVE tensor, and reclaims it as soon as there are none. Looks
 * at further holders are left to the steps of @a. `retired` counts the row; the caller corrects
 * `tensors`, which counts the tensors that names mean.
 */
void lease_retire(struct state *st, struct account *a, uint32_t slot);
/* Retires a tensor only if nobody holds it. False: somebody does, and it stays LIVE. True: it is
 * RETIRED; the caller unnames it, then calls lease_reclaim_unheld(). */
bool lease_retire_unheld(struct state *st, uint32_t slot);
void lease_reclaim_unheld(struct state *st, uint32_t slot);
/* True if anybody holds the tensor. If not, *@used is its last use by the ledgers, or 0 for none.
 * @now and *@used are times of ledger_clock(). */
bool lease_look(struct state *st, uint32_t slot, uint64_t now, uint64_t *used);
/* Ends the walk of a RETIRED row that is to be LIVE again, and charges the row to the account of
 * @c. No client can have got the row, but a slow one may count it for a moment. False: @c, its
 * producer, does not hold it. */
bool lease_revive(struct state *st, const struct client *c, uint32_t slot);
/* Handles the report of @c that it has given up its last lease on @ref. */
void lease_released(struct state *st, struct client *c, uint64_t ref);
/* Looks again, in the steps of @c's account, at all rows that @c was found to hold. It may have
 * released some without a message, or hold nothing any more. */
void lease_rescan(struct state *st, struct client *c);
/* To be called when a RETIRED row has left its segment: other clients may hold it now. */
void lease_moved(struct state *st, struct account *a, uint32_t slot);
/* A former daemon left this row RETIRED. To be called when all holdings are known. */
void lease_adopt(struct state *st, struct account *a, uint32_t slot);

/* A tensor that a client has handed on (handover.c). T2 does not begin while a tensor has one. */
struct handover {
	struct handover *next;	 /* of the same tensor */
	struct list of_client;	 /* in client.handed */
	struct heap_node expiry; /* in lifetimes.handovers, unless it is for ever */
	struct client *client;	 /* the client that has handed it on */
	uint64_t id;
	uint32_t slot;
	uint32_t fact; /* CATALOG_NONE: there are no facts */
	struct charge charge;
};

/* Add the handover to its tensor, which is LIVE or RETIRED, and take it away again. After
 * lease_unhand(), call lease_walk_again(). */
void lease_hand(struct state *st, struct handover *h);
void lease_unhand(struct state *st, struct handover *h);
/* T2 begins anew, in the steps of @a, if the tensor is RETIRED and not handed on: a client that the
 * walk has passed may hold it now. */
void lease_walk_again(struct state *st, struct account *a, uint32_t slot);

/* ---- steps: work that was begun here and goes on later ---- */

/* Goes on with the steps of @a, which is in state.stepping, for at most @budget looks at ledgers.
 * False: nothing is left, and @a is not in the list any more. */
bool steps_go(struct state *st, struct account *a, unsigned budget);
/* True if any work goes on in steps. */
static inline bool steps_left(const struct state *st)
{
	return !list_empty(&st->stepping) || !list_empty(&st->segments.graves);
}
