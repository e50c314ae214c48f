/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a connection. First ends what ends with the connection, in the order of
 * connection_leave(); later its ledger, its drafts, its segments and its account: client_leave().
 *
 * The process may live on and still use what the client held, if it closed the socket itself, or if
 * we dropped the connection. So nothing is given back while a process maps its ledger
 * (ledger_is_mapped()).
 *
 * Each part of the end is a list that gets shorter by whole entries, or a cursor in the ledger. So
 * between two steps the rest is as it was before the end began, and an end that begins anew goes on
 * from there. Nothing is added to an emptied list, since the client sends no messages any more.
 * Loop thread only.
 */
#include <limits.h>

#include "daemon/state/claim.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/handover.h"
#include "daemon/state/lease.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"

/* So many reads of the ledger's words cost as much as one look at a row. */
enum { WORDS_PER_LOOK = 16 };

/* ---- steps; each returns true when it is complete -------------------------------------------- */

static bool drafts_leave(struct client *c, struct state *st, unsigned *budget)
{
	for (; *budget && c->draft_head != CATALOG_NONE; --*budget)
		draft_leave(st, c, c->draft_head);
	return c->draft_head == CATALOG_NONE;
}

/* Takes the segment from its writer. If it is empty and for small tensors or sealed, it ends with
 * its writer. Others stay for the writer's user. */
static void segment_leave(struct segment *seg, bool reuse)
{
	list_del(&seg->writer_link);
	seg->writer = 0;
	if (reuse && seg->extents == 0 && (segment_is_small(seg) || !seg->storage->named))
		segments_end(seg);
}

static bool segments_leave(struct list *segments, bool reuse, unsigned *budget)
{
	for (; *budget && !list_empty(segments); --*budget)
		segment_leave(list_first_entry(segments, struct segment, writer_link), reuse);
	return list_empty(segments);
}

void client_lets_go(struct state *st, struct client *c, uint32_t segment, uint32_t generation)
{
	struct segment *seg = segments_find(&st->segments, segment, generation);

	if (seg && !seg->device && seg->writer == c->id && segment_is_handed(seg))
		segment_leave(seg, true);
}

static bool smalls_leave(struct client *c, bool reuse, unsigned *budget)
{
	for (unsigned i = 0; i <= SMALL_EMPTY; i++) {
		if (!segments_leave(&c->small[i], reuse, budget))
			return false;
	}
	return true;
}

/* Drops the ledger: its leases count for nothing from now on. */
static void ledger_leave(struct client *c, struct state *st)
{
	if (st->served[c->index] == c)
		client_drop_ledger(c, st);
	lease_rescan(st, c); /* its parked rows are free to go on */
}

/* Ends everything that ends with the connection, even if its process lives on. */
static bool connection_leave(struct client *c, struct state *st, unsigned *budget)
{
	claims_leave(st, c); /* at most CLIENT_CLAIMS_MAX */
	watches_leave(st, c);
	return streams_leave(st, c, budget) && rings_leave(st, c, budget) &&
	       group_leave(st, c, budget) && device_leave(st, c, budget) &&
	       handovers_leave(st, c, budget) && expire_bound(st, c, budget) &&
	       lifetime_remember(st, c, budget);
}

/* Ends everything that the process could use while it had the ledger mapped. */
static bool client_leave(struct client *c, struct state *st, bool reuse, unsigned *budget)
{
	ledger_leave(c, st);
	streams_forget(st, c);
	return (!reuse || drafts_leave(c, st, budget)) && smalls_leave(c, reuse, budget) &&
	       segments_leave(&c->large, reuse, budget) && holdings_leave(st, c, budget);
}

/* Ends the client, which has nothing left. */
static void client_finish(struct client *c, struct state *st)
{
	if (c->generation < ENTRY_GENERATION_MAX)
		catalog_give(&st->catalog.clients, c->index);
	c->index = CATALOG_NONE;
	list_del(&c->account_link);
	c->account = account_unref(c->account);
	atomic_fetch_sub(&st->catalog.header->clients, 1);
}

/*
 * Looks for a lease in the ledger, beginning where one was found last and going once around. An
 * orphan takes no new leases (D1): a counter that was 0 stays 0, except for gets that lose their
 * race. So slots before the cursor need no second look.
 */
static enum client_left orphan_scan(struct client *c, struct state *st, unsigned budget)
{
	unsigned words = budget * WORDS_PER_LOOK;
	uint32_t leases;
	bool held;

	held = c->draft_head != CATALOG_NONE ||
	       client_next_held(c, st, &c->end.slot, &words, &leases);
	if (held) {
		c->end.around = false;
		lease_rescan(st, c); /* an orphan cannot report its releases */
		return CLIENT_ORPHANED;
	}
	if (words && !c->end.around) {
		c->end.around = true;
		c->end.slot = 0;
	} else if (words) {
		c->end.stage = END_GIVES;
	}
	return CLIENT_MORE;
}

/* ---- the end -------------------------------------------------------------------------------- */

void client_end(struct client *c, struct state *st)
{
	c->end.stage = END_LEAVES;
	if (c->index == CATALOG_NONE)
		return;
	client_end_leases(c, st);
	watches_producer_ended(st, c);
}

enum client_left client_end_step(struct client *c, struct state *st, unsigned budget)
{
	if (c->index == CATALOG_NONE)
		return CLIENT_OVER;
	if (c->end.stage == END_LEAVES) {
		if (!connection_leave(c, st, &budget))
			return CLIENT_MORE;
		c->end.stage = c->ledger_fd >= 0 ? END_LEDGER : END_GIVES;
		c->end.slot = 0;
	}
	if (c->end.stage == END_LEDGER)
		return CLIENT_LOOK;
	if (c->end.stage == END_SCANS)
		return orphan_scan(c, st, budget);
	if (!client_leave(c, st, true, &budget))
		return CLIENT_MORE;
	client_finish(c, st);
	return CLIENT_OVER;
}

void client_looked(struct client *c, bool mapped)
{
	if (mapped)
		client_map_ledger(c);
	c->end.around = c->end.slot == 0;
	c->end.stage = mapped ? END_SCANS : END_GIVES;
}

void client_deinit(struct client *c, struct state *st, bool reuse)
{
	unsigned budget = UINT_MAX;

	if (c->index == CATALOG_NONE)
		return;
	claims_leave(st, c);
	watches_leave(st, c);
	client_end_leases(c, st);
	streams_leave(st, c, &budget);
	rings_leave(st, c, &budget);
	group_leave(st, c, &budget);
	device_leave(st, c, &budget);
	handovers_leave(st, c, &budget);
	list_del(&c->bound);
	client_leave(c, st, reuse, &budget);
	client_finish(c, st);
}
