/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on devices. Invariants: (1) a tensor whose producer is connected has its notice in
 * client.placed; (2) no lost row of a producer that is gone is in a segment. Loop thread only.
 */
#include "daemon/state/device.h"
#include "daemon/state/export.h"
#include "daemon/state/lost.h"
#include "daemon/state/notice.h"
#include "daemon/state/outcome.h"
#include "daemon/state/tensor.h"

/* ---- tensors -------------------------------------------------------------------------------- */

static const char *place_check(const struct segment *seg, const struct wire_place *m,
			       const struct tensor_description *d, uint64_t *nbytes)
{
	const char *why = description_check(d, UINT64_MAX, nbytes);

	if (!device_memory_complete(seg->device))
		return "the segment's parts have not all arrived";
	if (!why && (m->offset > seg->size || *nbytes > seg->size - m->offset))
		why = "the tensor reaches beyond its segment";
	return why;
}

/* Takes a slot, its name and what it needs, and the notice of its end. None of it is visible. */
static int place_new(struct state *st, struct client *c, const struct tensor_description *d,
		     uint32_t *slot, uint32_t *name)
{
	struct tensor_request rq = { .extra = description_extra(d) };
	struct notice *n;
	int r;

	r = notice_new(&n, c);
	if (r)
		return r;
	r = draft_new_member(st, c, &rq, slot);
	if (!r) {
		n->message.freed.ref = ref_make(catalog_row(&st->catalog, *slot)->word >> 2, *slot);
		r = draft_take_name(st, *slot, &d->name, name);
		if (r)
			tensor_abort(st, c, n->message.freed.ref);
	}
	if (r) {
		notice_free(n);
		return r;
	}
	n->message.header.type = WIRE_FREED;
	n->message.header.length = sizeof(n->message.freed);
	list_add_tail(&c->placed, &n->link);
	st->tensors[*slot].freed = n;
	return 0;
}

int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed, const char **why)
{
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);
	struct catalog_row *row;
	uint32_t slot, name;
	uint64_t nbytes = 0;
	int r;

	if (!seg)
		return STATE_E_NOT_FOUND;
	*why = place_check(seg, m, d, &nbytes);
	r = *why ? STATE_E_INVALID : tensor_may_name(st, c, &d->name);
	if (!r)
		r = place_new(st, c, d, &slot, &name);
	if (r)
		return r;
	st->tensors[slot].freed->message.freed.cookie = m->cookie;
	st->tensors[slot].segment = seg;
	seg->places++;
	description_write(st, slot, d);
	row = catalog_row(&st->catalog, slot);
	row->flags |= ROW_ON_DEVICE;
	row->nbytes = nbytes;
	row->offset = m->offset;
	row->segment = seg->index;
	row->segment_generation = seg->generation;
	atomic_store(&row->progress, d->event ? ROW_UNFINISHED : ROW_FINISHED);
	draft_end(st, c, slot);
	placed->ref = st->tensors[slot].freed->message.freed.ref;
	tensor_publish(st, c, slot, name, &placed->version);
	return 0;
}

/* The row stays LIVE while its name means it, so that a get can say what happened. */
static void lose(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	if (atomic_load(&row->progress) == ROW_LOST)
		return;
	atomic_store(&row->progress, ROW_LOST);
	if (row_word_state(atomic_load(&row->word)) != ROW_LIVE)
		return;
	lost_add(st, slot);
	catalog_wake(&st->catalog, catalog_name(&st->catalog, row->name)->hash);
	if (st->lost.count > LOST_MAX)
		tensor_unname(st, catalog_row(&st->catalog, st->lost.oldest)->name);
}

void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed)
{
	uint32_t slot = ref_slot(ref);
	struct catalog_row *row;
	uint64_t word;

	if (slot >= st->catalog.rows.high)
		return;
	row = catalog_row(&st->catalog, slot);
	word = atomic_load(&row->word);
	if ((word != row_word(ref_generation(ref), ROW_LIVE) &&
	     word != row_word(ref_generation(ref), ROW_RETIRED)) ||
	    atomic_load(&row->progress) != ROW_UNFINISHED || st->tensors[slot].freed->client != c)
		return;
	if (failed)
		lose(st, slot);
	else
		atomic_store(&row->progress, ROW_FINISHED);
}

/* Its producer is gone: a tensor whose memory died with it, or that was never finished, is lost. */
static void placed_leave(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = t->segment;

	t->freed = NULL;
	if (!seg->device->mortal &&
	    atomic_load(&catalog_row(&st->catalog, slot)->progress) == ROW_FINISHED)
		return;
	t->segment = NULL;
	seg->places--;
	lose(st, slot);
}

void device_leave(struct state *st, struct client *c)
{
	struct notice *n;
	uint32_t slot;

	import_leave(st, c);
	while (!list_empty(&c->placed)) {
		n = list_first_entry(&c->placed, struct notice, link);
		slot = ref_slot(n->message.freed.ref);
		notice_free(n);
		placed_leave(st, slot);
	}
	export_leave(st, c);
	while ((n = notice_next(c)))
		notice_sent(n);
	list_del(&c->notified);
}
