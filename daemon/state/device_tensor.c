/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on devices. Invariants: (1) a tensor whose producer is connected has its notice in
 * client.placed; (2) a lost row of a producer that has ended is in no segment. Loop thread only. */
#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/export.h"
#include "daemon/state/lease.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/state.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"

/* ---- tensors -------------------------------------------------------------------------------- */

static const char *place_check(const struct segment *seg, const struct wire_place *m,
			       const struct tensor_description *d, uint64_t *nbytes)
{
	if (!device_memory_complete(seg->device))
		return "the segment's parts have not all arrived";
	if (m->offset > seg->size)
		return "the tensor begins beyond its segment";
	return description_check(d, seg->size - m->offset, nbytes);
}

/* Keeps the notice that tells the producer when nobody uses the tensor any more. */
static void placed_note(struct state *st, struct client *c, uint32_t slot, struct notice *n)
{
	n->message.freed = (struct wire_freed){
		.header = { .type = WIRE_FREED, .length = sizeof(n->message.freed) },
		.ref = ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot),
	};
	n->slot = slot;
	list_add_tail(&c->placed, &n->link);
	st->tensors[slot].freed = n;
}

/* Takes a slot, its name and its reservations. Clients see none of it yet. */
static int row_new(struct state *st, struct client *c, const struct tensor_description *d,
		   uint32_t *slot, uint32_t *name)
{
	struct tensor_request rq = { .extra = description_extra(d) };
	unsigned ended = 0;
	int r;

	do
		r = draft_new_member(st, c, &rq, slot);
	while (rings_yield(st, c->account, r, &ended));
	if (r)
		return r;
	r = draft_take_name(st, *slot, &d->name, name);
	if (r)
		tensor_abort(st, c, ref_make(catalog_row(&st->catalog, *slot)->word >> 2, *slot));
	return r;
}

/* Does what row_new() does, and makes the notice of the tensor's end. */
static int place_new(struct state *st, struct client *c, const struct tensor_description *d,
		     uint32_t *slot, uint32_t *name)
{
	struct notice *n;
	int r;

	r = notice_new(&n, c);
	if (r)
		return r;
	r = row_new(st, c, d, slot, name);
	if (r) {
		notice_free(n);
		return r;
	}
	placed_note(st, c, *slot, n);
	return 0;
}

/* Puts a tensor into @seg. */
static void row_in(struct state *st, uint32_t slot, struct segment *seg, uint64_t offset,
		   uint64_t nbytes, const struct tensor_description *d)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	st->tensors[slot].segment = seg;
	seg->extents++;
	description_write(st, slot, d);
	row->flags |= ROW_ON_DEVICE;
	row->nbytes = nbytes;
	row->offset = offset;
	row->segment = seg->index;
	row->segment_generation = seg->generation;
}

static void place_in(struct state *st, uint32_t slot, struct segment *seg,
		     const struct wire_place *m, const struct tensor_description *d,
		     uint64_t nbytes)
{
	st->tensors[slot].freed->message.freed.cookie = m->cookie;
	row_in(st, slot, seg, m->offset, nbytes, d);
	atomic_store(&catalog_row(&st->catalog, slot)->progress, !d->event	 ? ROW_FINISHED
								 : m->unreported ? ROW_UNREPORTED
										 : ROW_UNFINISHED);
}

int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed, const char **why)
{
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);
	uint32_t slot, name;
	uint64_t nbytes = 0;
	int r;

	if (!seg)
		return STATE_E_NOT_FOUND;
	*why = place_check(seg, m, d, &nbytes);
	r = *why ? STATE_E_INVALID : tensor_may_publish(st, c, d, why);
	if (!r && d->lifetime.flags & WIRE_LIFETIME_EVICTABLE)
		r = lifetime_prepare(st, c, seg);
	if (!r)
		r = place_new(st, c, d, &slot, &name);
	if (r) {
		lifetime_tidy(st);
		return r;
	}
	place_in(st, slot, seg, m, d, nbytes);
	draft_end(st, c, slot);
	placed->ref = st->tensors[slot].freed->message.freed.ref;
	tensor_publish(st, c, slot, name, &placed->version);
	return 0;
}

int device_member(struct state *st, struct client *c, uint64_t ref, const struct wire_place *m,
		  const struct tensor_description *d, uint64_t *member, const char **why)
{
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);
	struct notice *n = NULL;
	uint32_t leader, slot;
	uint64_t nbytes = 0;
	int r;

	if (group_was_published(st, c, ref)) {
		*member = 0; /* the group is published already, and the request only repeated */
		return 0;
	}
	if (!seg)
		return STATE_E_NOT_FOUND;
	*why = place_check(seg, m, d, &nbytes);
	if (!*why && d->lifetime.flags & WIRE_LIFETIME_EVICTABLE)
		*why = "a tensor on a device that is published in a group cannot be evictable";
	r = *why ? STATE_E_INVALID : member_leader(st, c, ref, &leader, why);
	if (!r)
		r = tensor_may_publish(st, c, d, why);
	if (!r)
		r = notice_new(&n, c);
	if (!r)
		r = member_new(st, c, leader, d, nbytes, false, &slot);
	if (r) {
		notice_free(n);
		return r;
	}
	placed_note(st, c, slot, n);
	place_in(st, slot, seg, m, d, nbytes);
	*member = n->message.freed.ref;
	return 0;
}

/* ---- second names --------------------------------------------------------------------------- */

bool device_has(const struct state *st, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);

	return slot < st->catalog.rows.high &&
	       catalog_row(&st->catalog, slot)->flags & ROW_ON_DEVICE;
}

static const char *link_check(const struct state *st, uint32_t from)
{
	switch (atomic_load(&catalog_row(&st->catalog, from)->progress)) {
	case ROW_FINISHED:
		return st->tensors[from].segment ? NULL : "it has no bytes";
	case ROW_LOST:
		return "its memory went with its producer";
	default:
		return "its device has not finished it";
	}
}

/* The producer's notice of the end of @from reports the end of both. There is none if the producer
 * has ended. */
static void link_share(struct state *st, uint32_t slot, uint32_t from)
{
	struct tensor *t = &st->tensors[slot], *f = &st->tensors[from];

	t->freed = f->freed;
	if (!f->freed)
		return;
	extent_join(st, slot, from);
	t->linked = f->linked = true;
}

int device_link(struct state *st, struct client *c, uint64_t ref, struct tensor_description *d,
		uint64_t *version, const char **why)
{
	const struct catalog_row *row;
	struct link_dims dims;
	uint32_t from, slot, name;
	int r;

	r = link_source(st, c, ref, d, &from, why);
	if (r)
		return r;
	*why = link_check(st, from);
	r = *why ? STATE_E_INVALID : 0;
	if (!r && d->lifetime.flags & WIRE_LIFETIME_EVICTABLE)
		r = lifetime_prepare(st, c, st->tensors[from].segment);
	if (!r) {
		link_describe(d, &dims, st, from);
		r = row_new(st, c, d, &slot, &name);
	}
	if (r) {
		lifetime_tidy(st);
		return r;
	}
	row = catalog_row(&st->catalog, from);
	row_in(st, slot, st->tensors[from].segment, row->offset, row->nbytes, d);
	atomic_store(&catalog_row(&st->catalog, slot)->progress, ROW_FINISHED);
	link_share(st, slot, from);
	draft_end(st, c, slot);
	tensor_publish(st, c, slot, name, version);
	return 0;
}

/* ---- the end of the work and of producers --------------------------------------------------- */

/* Marks the row as lost. It stays LIVE while its name means it, so that a get can report the
 * loss. */
static void lose(struct state *st, struct account *a, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	const struct account *owner = st->tensors[slot].account;
	unsigned wakes = 0; /* a producer that ends may lose many: wake later */
	bool full;

	if (atomic_load(&row->progress) == ROW_LOST)
		return;
	atomic_store(&row->progress, ROW_LOST);
	if (row_word_state(atomic_load(&row->word)) != ROW_LIVE)
		return;
	full = lost_add(st, slot);
	catalog_wake(&st->catalog, row->name, false, &wakes);
	watches_note(st, row->name, false, NULL, &wakes);
	if (full)
		tensor_unname(st, a, lost_oldest(st, owner));
}

void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed)
{
	uint32_t slot = ref_slot(ref);
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	if (!ref_is_published(st, ref) || atomic_load(&row->progress) != ROW_UNFINISHED ||
	    st->tensors[slot].freed->client != c)
		return;
	if (failed)
		lose(st, c->account, slot);
	else
		atomic_store(&row->progress, ROW_FINISHED);
}

/* Handles a tensor whose producer has ended: it is lost if its memory died with the producer or was
 * never finished. */
static void placed_leave(struct state *st, struct client *c, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = t->segment;
	bool retired;

	t->freed = NULL;
	if (!seg->device->mortal &&
	    atomic_load(&catalog_row(&st->catalog, slot)->progress) == ROW_FINISHED)
		return;
	t->segment = NULL;
	seg->extents--;
	retired = row_word_state(atomic_load(&catalog_row(&st->catalog, slot)->word)) ==
		  ROW_RETIRED;
	if (!retired)
		lifetime_lost(st, slot);
	lose(st, c->account, slot);
	if (retired)
		lease_moved(st, c->account, slot);
}

static bool all_placed_leave(struct state *st, struct client *c, unsigned *budget)
{
	struct notice *n;
	uint32_t slot;

	for (; *budget && !list_empty(&c->placed); --*budget) {
		n = list_first_entry(&c->placed, struct notice, link);
		slot = n->slot;
		if (!extent_unlink(st, slot))
			notice_free(n);
		placed_leave(st, c, slot);
	}
	return list_empty(&c->placed);
}

/* An export ends after its tensors, and its notices after both. */
bool device_leave(struct state *st, struct client *c, unsigned *budget)
{
	struct notice *n;

	if (!import_leave(st, c, budget) || !all_placed_leave(st, c, budget) ||
	    !export_leave(st, c, budget))
		return false;
	for (; *budget && (n = notice_next(c)); --*budget)
		notice_sent(n);
	if (notice_next(c))
		return false;
	list_del(&c->notified);
	return true;
}
