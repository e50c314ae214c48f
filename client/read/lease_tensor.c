/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "client/error.h"
#include "client/read/lease_tensor.h"

const struct memory_kind *tensor_lease_kind(const struct tensor_lease *l)
{
	for (unsigned k = 0; k < MEMORY_KINDS; k++) /* no client yet: no kinds, no lease */
		if (memory_kinds[k] && l->managed.deleter == memory_kinds[k]->lease_delete)
			return memory_kinds[k];
	return NULL;
}

struct tensor_lease *tensor_lease_of(const DLManagedTensorVersioned *managed)
{
	struct tensor_lease *l = (struct tensor_lease *)managed;

	return managed && tensor_lease_kind(l) ? l : NULL;
}

int tensor_lease_shaped(const struct use *use, uint64_t ref, const struct row_head *h,
			uint64_t *nbytes, struct tensor_lease **out)
{
	const struct catalog_view *c = &use->session->catalog;
	struct tensor_lease *l = lease_object_take(h->ndim);
	int r;

	if (!l)
		return tl_fail(-ENOMEM, "no memory for a lease");
	l->private_size = 0;
	r = row_dims(c, &c->rows[ref_slot(ref)], h, l->dims, l->dims + h->ndim, nbytes);
	if (r)
		lease_object_give(l);
	else
		*out = l;
	return r;
}

int tensor_lease_wrap(const struct use *use, uint64_t ref, const struct row_head *h,
		      uint64_t *nbytes, void (*delete)(DLManagedTensorVersioned *managed),
		      DLManagedTensorVersioned **out)
{
	struct tensor_lease *l;
	int r = tensor_lease_shaped(use, ref, h, nbytes, &l);

	if (r)
		return r;
	lease_fill(l, use, ref, h, NULL, DLPACK_FLAG_BITMASK_READ_ONLY, delete);
	*out = &l->managed;
	return 0;
}

bool tensor_lease_known(const struct tensor_lease *l)
{
	uint64_t word;

	atomic_thread_fence(memory_order_acquire); /* ORDER: after the caller's reads of the row */
	word = atomic_load(&l->session->catalog.rows[ref_slot(l->ref)].word);
	return word >> 2 == ref_generation(l->ref) && row_word_state(word) != ROW_FREE;
}

int tensor_lease_unknown(void)
{
	return tl_fail(-ENOTCONN, "the daemon that knows the tensor does not serve us now");
}

int tensor_lease_info(const struct tensor_lease *l, tl_info *info)
{
	int r = tensor_info(l->session, &l->session->catalog.rows[ref_slot(l->ref)], info);

	if (!tensor_lease_known(l)) /* checked after the row was read: its word changes first */
		return tensor_lease_unknown();
	info->dlpack_flags = l->managed.flags;
	return r;
}

void tensor_lease_unwrap(DLManagedTensorVersioned *managed)
{
	lease_object_give((struct tensor_lease *)managed);
}

int tensor_lease_new(const struct use *use, uint64_t ref, const tl_get_options *options,
		     struct get_until until, DLManagedTensorVersioned **out)
{
	const struct row_head h = row_head(&use->session->catalog.rows[ref_slot(ref)]);
	unsigned kind = h.flags & ROW_ON_DEVICE ? KIND_DEVICE : KIND_SHARED;
	int r = memory_kinds[kind]->lease(use, ref, &h, options, until, out);

	if (!r && h.flags & ROW_EVICTABLE)
		hold_used(use->session, ref_slot(ref));
	/* an error found in a tensor that ended meanwhile means nothing */
	return r && r != LEASE_E_UNSERVED && !lease_stands(use->session, ref) ? LEASE_E_STALE : r;
}

int tensor_info(const struct session *s, const struct catalog_row *row, tl_info *info)
{
	int r = row_info(&s->catalog, row, info);

	if (!r && info->device.device_type != kDLCPU)
		info->device.device_id = memory_kinds[KIND_DEVICE]->ordinal(info->device_uuid);
	return r;
}
