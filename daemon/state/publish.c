/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing: the commit of a draft or of a group, the link of a tensor to another name, and the
 * delete of a name. All that can be wrong is checked first. From where a row is filled in nothing
 * fails, since create set aside what is needed. Loop thread only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/lease.h"
#include "daemon/state/outcome.h"
#include "daemon/state/publish.h"
#include "daemon/state/tensor.h"
#include "proto/wire.h"
#include "util/clock.h"
#include "util/fault.h"

/* ---- names and descriptions ----------------------------------------------------------------- */

static int may_publish(const struct state *st, const struct client *c, uint32_t name)
{
	if (catalog_name(&st->catalog, name)->current == 0)
		return 0;
	if (c->uid == st->names.info[name].uid || c->uid == st->uid || c->uid == 0)
		return 0;
	return STATE_E_DENIED;
}

int tensor_may_name(const struct state *st, const struct client *c, const struct name_key *name)
{
	uint32_t index = name_find(&st->names, name);

	return index == CATALOG_NONE ? 0 : may_publish(st, c, index);
}

uint32_t description_extra(const struct tensor_description *d)
{
	return row_extra(d->ndim, d->shape, d->meta_len) + (d->event ? WIRE_HANDLE_BYTES : 0);
}

void description_write(struct state *st, uint32_t slot, const struct tensor_description *d)
{
	struct chunk_end end = { .first = CATALOG_NONE, .last = CATALOG_NONE };
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	size_t shape_size = d->ndim * sizeof(int64_t);

	row->dtype_code = d->dtype_code;
	row->dtype_bits = d->dtype_bits;
	row->dtype_lanes = d->dtype_lanes;
	row->ndim = d->ndim;
	row->flags = row_has_room_for(d->ndim, d->shape) ? d->flags
							 : d->flags | ROW_SHAPE_IN_CHUNKS;
	row->meta_len = d->meta_len;
	if (row->flags & ROW_SHAPE_IN_CHUNKS)
		catalog_chunks_write(&st->catalog, &end, d->shape, shape_size);
	for (unsigned i = 0; !(row->flags & ROW_SHAPE_IN_CHUNKS) && i < d->ndim; i++)
		row->shape[i] = (uint32_t)d->shape[i];
	if (d->meta_len > CATALOG_INLINE_META)
		catalog_chunks_write(&st->catalog, &end, d->meta, d->meta_len);
	else if (d->meta_len)
		memcpy(row->meta, d->meta, d->meta_len);
	if (d->event) {
		catalog_chunks_write(&st->catalog, &end, d->event, WIRE_HANDLE_BYTES);
		row->flags |= ROW_EVENT;
	}
	row->chunk = end.first;
	st->tensors[slot].chunks_reserved = (uint16_t)(st->tensors[slot].chunks_reserved -
						       end.count);
}

/* ---- publishing one ------------------------------------------------------------------------- */

/* Fills in all but what makes the row visible; the name is pinned. Returns what the name meant
 * before. */
static uint64_t row_publish(struct state *st, const struct client *c, uint32_t slot, uint32_t index)
{
	struct catalog_name *name = catalog_name(&st->catalog, index);
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	row->name = index;
	row->uid = c->uid;
	row->committed_ns = (uint64_t)now_real_ns();
	row->version = name->version + 1;
	st->names.info[index].uid = c->uid;
	atomic_store(&name->version, row->version);
	return name->current;
}

static void row_go_live(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	atomic_store(&row->word, row_word(row->word >> 2, ROW_LIVE));
	atomic_fetch_add(&st->catalog.header->tensors, 1);
	atomic_fetch_add(&st->catalog.header->commits, 1);
}

static void name_points_at(struct state *st, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);

	atomic_store(&catalog_name(&st->catalog, row->name)->current,
		     ref_make(row->word >> 2, slot));
}

static void published(struct state *st, uint32_t slot, uint64_t former)
{
	catalog_wake(&st->catalog,
		     catalog_name(&st->catalog, catalog_row(&st->catalog, slot)->name)->hash);
	if (former)
		lease_retire(st, ref_slot(former));
}

/* PROTOCOL.md section 4 gives the order of these steps. */
void tensor_publish(struct state *st, const struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version)
{
	uint64_t former;

	name_pin(&st->names, index);
	former = row_publish(st, c, slot, index);
	*version = catalog_row(&st->catalog, slot)->version;
	row_go_live(st, slot);
	name_points_at(st, slot);
	published(st, slot, former);
}

int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why)
{
	struct catalog_row *row;
	uint32_t slot, name;
	uint64_t nbytes = 0;
	int r;

	if (!draft_find(st, c, ref, &slot))
		return STATE_E_GONE;
	row = catalog_row(&st->catalog, slot);
	*why = description_check(d, row->nbytes, &nbytes);
	if (!*why && (st->tensors[slot].group || row->name != CATALOG_NONE))
		*why = "the draft is part of a group";
	if (!*why &&
	    catalog_chunks_for(description_extra(d)) + catalog_chunks_for(TENSOR_NAME_MAX) >
		    st->tensors[slot].chunks_reserved)
		*why = "the shape and metadata have more bytes than the draft was created for";
	r = *why ? STATE_E_INVALID : tensor_may_name(st, c, &d->name);
	if (!r)
		r = draft_take_name(st, slot, &d->name, &name);
	if (r) {
		tensor_abort(st, c, ref);
		return r;
	}
	description_write(st, slot, d);
	row->nbytes = nbytes;
	if (nbytes == 0)
		row->segment = CATALOG_NONE; /* to readers this means "no bytes" */
	draft_end(st, c, slot);
	tensor_publish(st, c, slot, name, version);
	return 0;
}

/* ---- groups --------------------------------------------------------------------------------- */

/* Makes a draft in the memory of @leader and takes its name. None of it is visible. */
static int member_new(struct state *st, struct client *c, uint32_t leader,
		      const struct tensor_description *d, uint64_t nbytes, uint32_t *slot)
{
	struct tensor_request rq = { .nbytes = nbytes, .extra = description_extra(d) };
	uint32_t name;
	int r;

	r = draft_new_member(st, c, &rq, slot);
	if (r)
		return r;
	r = draft_take_name(st, *slot, &d->name, &name);
	if (r) {
		tensor_abort(st, c, ref_make(catalog_row(&st->catalog, *slot)->word >> 2, *slot));
		return r;
	}
	name_pin(&st->names, name);
	catalog_row(&st->catalog, *slot)->name = name;
	st->named++;
	draft_share(st, *slot, leader);
	st->tensors[leader].group = true;
	return 0;
}

int tensor_member(struct state *st, struct client *c, uint64_t ref, uint64_t offset,
		  const struct tensor_description *d, const char **why)
{
	struct catalog_row *row, *memory;
	uint32_t leader, slot;
	uint64_t nbytes = 0;
	int r;

	if (!draft_find(st, c, ref, &leader))
		return STATE_E_GONE;
	memory = catalog_row(&st->catalog, leader);
	if (memory->name != CATALOG_NONE)
		*why = "a member of a group has no members";
	else if (offset > memory->nbytes)
		*why = "its offset is beyond the group's memory";
	else
		*why = description_check(d, memory->nbytes - offset, &nbytes);
	r = *why ? STATE_E_INVALID : tensor_may_name(st, c, &d->name);
	if (!r)
		r = member_new(st, c, leader, d, nbytes, &slot);
	if (r)
		return r;
	description_write(st, slot, d);
	row = catalog_row(&st->catalog, slot);
	if (nbytes) {
		row->segment = memory->segment;
		row->segment_generation = memory->segment_generation;
		row->offset = memory->offset + offset;
	}
	return 0;
}

/* Writes at most @max members of @leader into @slots. Returns how many there are, or @max + 1. */
static uint32_t group_members(const struct state *st, uint32_t leader, uint32_t *slots,
			      uint32_t max)
{
	uint32_t n = 0;

	for (uint32_t i = st->tensors[leader].share; i != leader && n <= max;
	     i = st->tensors[i].share, n++) {
		if (n < max)
			slots[n] = i;
	}
	return n;
}

/*
 * Publishes all in one step. First every name points at a row that is not LIVE yet, so that a get
 * of any of them waits; then the rows become LIVE. A client that got a new tensor of the group
 * cannot get an old one afterwards.
 */
static void group_publish(struct state *st, struct client *c, const uint32_t *slots,
			  uint64_t *formers, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		formers[i] = row_publish(st, c, slots[i],
					 catalog_row(&st->catalog, slots[i])->name);
		name_points_at(st, slots[i]);
	}
	for (uint32_t i = 0; i < count; i++)
		row_go_live(st, slots[i]);
	for (uint32_t i = 0; i < count; i++) {
		draft_end(st, c, slots[i]);
		published(st, slots[i], formers[i]);
	}
}

static int group_check(const struct state *st, const struct client *c, uint32_t leader,
		       uint32_t *slots, uint32_t count, const char **why)
{
	if (!st->tensors[leader].group || group_members(st, leader, slots, count) != count) {
		*why = "the group does not have as many members as it should";
		return STATE_E_INVALID;
	}
	for (uint32_t i = 0; i < count; i++) {
		if (may_publish(st, c, catalog_row(&st->catalog, slots[i])->name))
			return STATE_E_DENIED;
	}
	return 0;
}

int tensor_group(struct state *st, struct client *c, uint64_t ref, uint32_t count, const char **why)
{
	uint64_t *formers = NULL;
	uint32_t *slots = NULL;
	uint32_t leader;
	int r;

	if (!draft_find(st, c, ref, &leader))
		return STATE_E_GONE;
	r = count > st->catalog.rows.in_use ? STATE_E_INVALID : 0;
	*why = "the group does not have as many members as it should";
	if (!r && !fault("group")) {
		formers = calloc(count, sizeof(*formers));
		slots = calloc(count, sizeof(*slots));
	}
	if (!r)
		r = formers && slots ? group_check(st, c, leader, slots, count, why) : -ENOMEM;
	if (!r) {
		group_publish(st, c, slots, formers, count);
		/* of the group only the memory is left, which the members share */
		st->tensors[leader].group = false;
	}
	tensor_abort(st, c, ref);
	free(formers);
	free(slots);
	return r;
}

/* ---- link and delete ------------------------------------------------------------------------ */

static void link_describe(struct tensor_description *d, const struct state *st,
			  const struct catalog_row *from, int64_t *shape)
{
	if (from->flags & ROW_SHAPE_IN_CHUNKS)
		catalog_chunks_read(&st->catalog, from->chunk, shape, from->ndim * sizeof(int64_t));
	for (unsigned i = 0; !(from->flags & ROW_SHAPE_IN_CHUNKS) && i < from->ndim; i++)
		shape[i] = from->shape[i];
	d->dtype_code = from->dtype_code;
	d->dtype_bits = from->dtype_bits;
	d->dtype_lanes = from->dtype_lanes;
	d->ndim = from->ndim;
	d->flags = from->flags & (uint8_t)~ROW_SHAPE_IN_CHUNKS;
	d->shape = shape;
}

/* Gives a draft without bytes the place of @from. */
static void link_share(struct state *st, uint32_t slot, uint32_t from)
{
	const struct catalog_row *source = catalog_row(&st->catalog, from);
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	row->nbytes = source->nbytes;
	row->offset = source->offset;
	row->segment = source->segment;
	row->segment_generation = source->segment_generation;
	draft_share(st, slot, from);
}

/* The bytes stay charged to the user who made them, so that only a name of that user (or of root,
 * or of ours) may keep them. */
static bool may_charge(const struct state *st, const struct client *c, const struct segment *seg)
{
	return !seg || seg->charge.user == c->user || c->uid == st->uid || c->uid == 0;
}

int tensor_link(struct state *st, struct client *c, uint64_t ref, const struct name_key *name,
		const void *meta, uint16_t meta_len, uint64_t *version, const char **why)
{
	struct tensor_description d = { .meta = meta, .meta_len = meta_len, .name = *name };
	struct tensor_request rq = { .extra = WIRE_EXTRA_MAX };
	uint32_t from = ref_slot(ref), slot;
	int64_t shape[TENSOR_NDIM_MAX];
	uint64_t word;
	int r;

	if (from >= st->catalog.rows.high)
		return STATE_E_GONE;
	word = catalog_row(&st->catalog, from)->word;
	if ((word != row_word(ref_generation(ref), ROW_LIVE) &&
	     word != row_word(ref_generation(ref), ROW_RETIRED)) ||
	    !client_leases_on(c, from))
		return STATE_E_GONE;
	if (catalog_row(&st->catalog, from)->flags & ROW_ON_DEVICE) {
		*why = "a tensor on a device has one name, since its producer is told once when it is free";
		return STATE_E_INVALID;
	}
	r = tensor_may_name(st, c, name);
	if (!r && !may_charge(st, c, st->tensors[from].segment))
		r = STATE_E_GONE;
	if (!r)
		r = tensor_create(st, c, &rq, &slot);
	if (r)
		return r;
	link_describe(&d, st, catalog_row(&st->catalog, from), shape);
	link_share(st, slot, from);
	return tensor_commit(st, c, ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot), &d,
			     version, why);
}

void tensor_unname(struct state *st, uint32_t index)
{
	struct catalog_name *name = catalog_name(&st->catalog, index);
	uint64_t former = name->current;

	atomic_store(&name->current, 0);
	lease_retire(st, ref_slot(former));
}

int tensor_delete(struct state *st, const struct client *c, const struct name_key *key)
{
	uint32_t index = name_find(&st->names, key);
	int r;

	if (index == CATALOG_NONE || catalog_name(&st->catalog, index)->current == 0)
		return STATE_E_NOT_FOUND;
	r = tensor_may_name(st, c, key);
	if (r)
		return r;
	tensor_unname(st, index);
	return 0;
}
