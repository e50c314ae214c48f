/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: which tensors are in use, as the ledgers of those say who hold their segments. */
#pragma once

#include "daemon/state/holding.h"

/* T1, T2: no new leases on a LIVE tensor from now on. It is reclaimed as soon as there are none;
 * what the look at many holders takes is @a's. `retired` counts it; `tensors`, what names mean, is
 * the caller's to correct. */
void lease_retire(struct state *st, struct account *a, uint32_t slot);
/*
 * The same for a tensor that is to go only if nobody holds it. False: somebody does, and it stays
 * LIVE. True: it is RETIRED; the caller unnames it, then calls lease_reclaim_unheld().
 */
bool lease_retire_unheld(struct state *st, uint32_t slot);
void lease_reclaim_unheld(struct state *st, uint32_t slot);
/* Does anybody hold the tensor? If not, *@used is its last use by the ledgers, or 0: none. @now and
 * *@used are of ledger_clock(). */
bool lease_look(struct state *st, uint32_t slot, uint64_t now, uint64_t *used);
/* A RETIRED row that @c holds, and that nobody else ever found, is to be LIVE again: its walk is
 * over. False: @c does not hold it. */
bool lease_revive(struct state *st, const struct client *c, uint32_t slot);
/* @c says that it gave up its last lease on @ref. */
void lease_released(struct state *st, struct client *c, uint64_t ref);
/* Looks again, in the steps of @c's account, at all that was found held by @c: it may have released
 * some without telling, or hold nothing any more. */
void lease_rescan(struct state *st, struct client *c);
/* A RETIRED row has left its segment, so that others may hold it. */
void lease_moved(struct state *st, struct account *a, uint32_t slot);
/* A row that a former daemon left RETIRED. All who hold something are known. */
void lease_adopt(struct state *st, struct account *a, uint32_t slot);

/* ---- steps: what was begun here and goes on later ---- */

/*
 * Goes on with what @a, of state.stepping, waits for, by at most @looks at ledgers. False: nothing
 * is left, and it is not in the list any more.
 */
bool steps_go(struct state *st, struct account *a, unsigned looks);
/* Is there work that goes on in steps? */
static inline bool steps_left(const struct state *st)
{
	return !list_empty(&st->stepping) || !list_empty(&st->memory.graves);
}
