/* SPDX-License-Identifier: Apache-2.0 */
/* Links: publishes the bytes of a tensor under a further name. Loop thread only. */
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/tensor.h"
#include "tensor/name.h"

static uint64_t ref_of(const struct state *st, uint32_t slot)
{
	return ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot);
}

void link_describe(struct tensor_description *d, struct link_dims *dims, const struct state *st,
		   uint32_t slot)
{
	const struct catalog_row *from = catalog_row(&st->catalog, slot);
	size_t bytes = from->ndim * sizeof(int64_t);
	bool in_chunks = from->flags & ROW_SHAPE_IN_CHUNKS, strided = from->flags & ROW_STRIDED;
	int64_t both[2 * TENSOR_NDIM_MAX];

	catalog_chunks_read(&st->catalog, from->chunk, both,
			    bytes * ((unsigned)in_chunks + (unsigned)strided));
	for (unsigned i = 0; i < from->ndim; i++)
		dims->shape[i] = in_chunks ? both[i] : from->shape[i];
	if (strided)
		memcpy(dims->strides, in_chunks ? both + from->ndim : both, bytes);
	d->dtype_code = from->dtype_code;
	d->dtype_bits = from->dtype_bits;
	d->dtype_lanes = from->dtype_lanes;
	d->ndim = from->ndim;
	d->flags = from->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	d->shape = dims->shape;
	d->strides = strided ? dims->strides : NULL;
}

/* Gives a draft without bytes the extent of @from. */
static void link_share(struct state *st, uint32_t slot, uint32_t from)
{
	const struct catalog_row *source = catalog_row(&st->catalog, from);
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	draft_share(st, slot, from);
	row->nbytes = source->nbytes;
	row->offset = source->offset;
	row->segment = source->segment;
	row->segment_generation = source->segment_generation;
}

/* True if @c may keep the bytes under another name. They stay charged to the user that made them,
 * so only that user, root and the daemon's user may. */
static bool may_charge(const struct state *st, const struct client *c, const struct segment *seg)
{
	if (!seg || c->uid == st->common->uid || c->uid == 0)
		return true;
	if (seg->device)
		return seg->device->bytes.account->uid == c->uid;
	return (seg->owner ? seg->owner : seg->charge.account) == c->account;
}

int link_source(struct state *st, struct client *c, uint64_t ref,
		const struct tensor_description *d, uint32_t *from, const char **why)
{
	int r = tensor_name_check(d->name.text, d->name.len, why)
			? STATE_E_INVALID
			: tensor_may_publish(st, c, d, why);

	if (r)
		return r;
	*from = ref_slot(ref);
	if (*from >= st->catalog.rows.high)
		return STATE_E_STALE;
	tensor_finish(st, *from);
	if (!ref_is_published(st, ref) || !client_leases_on(c, *from) ||
	    !may_charge(st, c, st->tensors[*from].segment))
		return STATE_E_STALE;
	if (st->tensors[*from].ring && st->tensors[*from].ring->stream) {
		*why = "it is an item of a stream, whose memory its producer uses again";
		return STATE_E_INVALID;
	}
	return 0;
}

/* Makes a draft for a second name of @ref. Making space for it may end the ring of @ref; if the
 * client's ledger lies, @ref ends too: STATE_E_STALE. */
static int link_create(struct state *st, struct client *c, uint64_t ref, uint32_t *slot)
{
	struct tensor_request rq = { .extra = WIRE_EXTRA_MAX };
	struct ring *ring;
	unsigned ended = 0;
	int r;

	do
		r = tensor_create(st, c, &rq, slot);
	while (rings_yield(st, c->account, r, &ended));
	ring = r ? NULL : st->tensors[ref_slot(ref)].ring;
	if (ring && ring->client)
		ring_end(st, c->account, ring); /* its producer would overwrite the bytes */
	if (r || ref_is_published(st, ref))
		return r;
	tensor_abort(st, c, ref_of(st, *slot));
	return STATE_E_STALE;
}

int tensor_link(struct state *st, struct client *c, uint64_t ref, struct tensor_description *d,
		uint64_t *version, const char **why)
{
	struct link_dims dims;
	uint32_t from, slot;
	int r;

	r = link_source(st, c, ref, d, &from, why);
	if (!r)
		r = link_create(st, c, ref, &slot);
	if (r)
		return r;
	link_describe(d, &dims, st, from);
	link_share(st, slot, from);
	return tensor_commit(st, c, ref_of(st, slot), d, version, why);
}
