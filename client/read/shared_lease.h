/* SPDX-License-Identifier: Apache-2.0 */
/* Leases on tensors in shared memory. */
#pragma once

#include <errno.h>

#include "client/error.h"
#include "client/memory/mapping.h"
#include "client/read/lease_tensor.h"

/* The operations of struct memory_kind. */
int shared_lease(const struct use *use, uint64_t ref, const struct row_head *head,
		 const tl_get_options *options, struct get_until until,
		 DLManagedTensorVersioned **out);
void shared_lease_delete(DLManagedTensorVersioned *managed);

/* Fails with -EPROTO: a tensor does not lie in its segment of @size bytes. */
int shared_out_of_bounds(const struct row_head *h, uint64_t nbytes, uint64_t size);

/*
 * Makes the tensor of a lease that the use has taken, if a mapping is there: else LEASE_E_UNMAPPED.
 * LEASE_E_STALE: there is no such lease (G4). h->segment is a segment. Announces its use of the
 * mapping before it looks for that: see lease_objects.h.
 */
__attribute__((always_inline)) static inline int shared_lease_mapped(const struct use *use,
								     uint64_t ref,
								     const struct row_head *h,
								     DLManagedTensorVersioned **out)
{
	struct session *s = use->session;
	struct mapping *m = &s->mappings.table[h->segment];
	struct tensor_lease *l = lease_object_take(h->ndim);
	uint64_t size = 0, nbytes = 0;
	const unsigned char *base;
	int r;

	if (__builtin_expect(!l, 0))
		return tl_fail(-ENOMEM, "no memory for a lease");
	l->private_size = 0;
	lease_object_use(l, &m->leased);
	base = mapping_find(m, h->segment_generation, &size);
	if (__builtin_expect(!base || !lease_stands(s, ref), 0)) {
		lease_object_give(l);
		return base ? LEASE_E_STALE : LEASE_E_UNMAPPED;
	}
	r = row_dims(&s->catalog, &s->catalog.rows[ref_slot(ref)], h, l->dims, l->dims + h->ndim,
		     &nbytes);
	if (!r &&
	    __builtin_expect(
		    h->offset > size || nbytes > size - h->offset || h->offset % TL_ALIGNMENT, 0))
		r = shared_out_of_bounds(h, nbytes, size);
	if (__builtin_expect(r != 0, 0)) {
		lease_object_give(l);
		return r;
	}
	lease_fill(l, use, ref, h, base + h->offset, DLPACK_FLAG_BITMASK_READ_ONLY,
		   shared_lease_delete);
	*out = &l->managed;
	return 0;
}
