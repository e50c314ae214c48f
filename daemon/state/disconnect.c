/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a connection. Death order: what it has open, placed and exported on devices; its
 * ledger, its drafts, its segments, its account. The process behind it may still use what it held,
 * since it may have closed the socket itself, or we dropped it. So nothing is given back before
 * nobody maps its ledger any more (client_ledger_is_mapped()). Loop thread only.
 */
#include "daemon/state/disconnect.h"
#include "daemon/state/device.h"
#include "daemon/state/lease.h"
#include "daemon/state/tensor.h"

/* Segments for small tensors end with their writer; those for large ones go on serving its user. */
static void list_leave(struct list *segments, struct state *st, bool reuse)
{
	struct segment *seg, *next;

	list_for_each_entry_safe(seg, next, segments, writer_link) {
		list_del(&seg->writer_link);
		seg->writer = 0;
		if (reuse && seg->places == 0 && segment_is_small(seg))
			memory_end(&st->memory, seg);
	}
}

bool client_end(struct client *c, struct state *st)
{
	if (c->index == CATALOG_NONE)
		return true;
	client_end_leases(c, st);
	tensor_messages_read(st, c); /* those that could be read have been */
	device_leave(st, c);
	return client_look(c, st);
}

bool client_look(struct client *c, struct state *st)
{
	uint32_t leases;

	if (c->ledger_fd >= 0 && client_ledger_is_mapped(c) &&
	    (c->draft_head != CATALOG_NONE ||
	     client_next_held(c, st, 0, &leases) != CATALOG_NONE)) {
		lease_rescan(st); /* it cannot say what it releases */
		return false;
	}
	client_deinit(c, st, true);
	return true;
}

void client_deinit(struct client *c, struct state *st, bool reuse)
{
	if (c->index == CATALOG_NONE)
		return;
	client_end_leases(c, st);
	device_leave(st, c);
	client_drop_ledger(c, st);
	while (reuse && c->draft_head != CATALOG_NONE) {
		uint32_t slot = c->draft_head;

		tensor_abort(st, c, ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot));
	}
	list_leave(&c->small, st, reuse);
	list_leave(&c->large, st, reuse);
	if (reuse)
		lease_rescan(st);
	guard_sweep(&st->memory.store.guard, c->id);
	if (c->generation < ENTRY_GENERATION_MAX)
		catalog_give(&st->catalog.clients, c->index);
	c->index = CATALOG_NONE;
	c->user = quota_user_unref(c->user);
	atomic_fetch_sub(&st->catalog.header->clients, 1);
}
