/* SPDX-License-Identifier: Apache-2.0 */
/* The DLPack tensor that a get hands out; its deleter is the release. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "client/connection/client.h"
#include "client/connection/lease_protocol.h"
#include "client/memory/catalog.h"
#include "client/memory/lease_objects.h"
#include "client/memory/memory_ops.h"

/* row_info(), with this process's number of the device. */
int tensor_info(const struct session *s, const struct catalog_row *row, tl_info *info);

/* Returns @managed as a lease of ours, or NULL if another library made the tensor. */
struct tensor_lease *tensor_lease_of(const DLManagedTensorVersioned *managed);
/* Returns the kind of memory that the tensor lies in. */
const struct memory_kind *tensor_lease_kind(const struct tensor_lease *l);

/* True if the row was still the lease's when it was read just now. If the daemon dropped us, the
 * row may be another tensor's; the bytes stay. */
bool tensor_lease_known(const struct tensor_lease *l);
/* Fails with -ENOTCONN, where tensor_lease_known() is false. */
int tensor_lease_unknown(void);
/* tl_tensor_info() for a lease of ours; *@info has its full size. */
int tensor_lease_info(const struct tensor_lease *l, tl_info *info);

/*
 * Maps and hands out the tensor of a lease that @use has taken. On success *out has both that lease
 * and the use's count. Returns 0, LEASE_E_STALE (there is no such lease: G4), LEASE_E_UNSERVED,
 * LEASE_E_LOST, SESSION_E_*, or a negative errno.
 */
int tensor_lease_new(const struct use *use, uint64_t ref, const tl_get_options *options,
		     struct get_until until, DLManagedTensorVersioned **out);

/* A flag beside TL_GET_*: gets a tensor on a GPU without opening its memory. */
#define LEASE_HANDLE ((uint32_t)1 << 31)

/* ---- For the kinds of memory ---- */

/* Makes a lease object with shape and strides. *@nbytes is its number of bytes, not checked against
 * anything. Returns 0 or a negative errno. */
int tensor_lease_shaped(const struct use *use, uint64_t ref, const struct row_head *head,
			uint64_t *nbytes, struct tensor_lease **out);
/* tensor_lease_shaped() as a read-only tensor without data, which the caller adds. */
int tensor_lease_wrap(const struct use *use, uint64_t ref, const struct row_head *head,
		      uint64_t *nbytes, void (*delete)(DLManagedTensorVersioned *managed),
		      DLManagedTensorVersioned **out);
/* Frees the object alone, if the tensor was not handed out. */
void tensor_lease_unwrap(DLManagedTensorVersioned *managed);

/* Makes the tensor of a lease that the use has taken. The lease takes over the use's count. */
static inline void lease_fill(struct tensor_lease *l, const struct use *use, uint64_t ref,
			      const struct row_head *h, const void *data, uint64_t flags,
			      void (*delete)(DLManagedTensorVersioned *managed))
{
	l->session = use->session;
	l->ref = ref;
	l->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = l,
		.deleter = delete,
		.flags = (h->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) | flags,
		.dl_tensor = {
			.data = (void *)data,
			.device = { kDLCPU, 0 },
			.ndim = h->ndim,
			.dtype = h->dtype,
			.shape = h->ndim ? l->dims : NULL,
			.strides = h->ndim ? l->dims + h->ndim : NULL,
		},
	};
}

/* Ends a lease for which nothing is mapped any more: gives up the lease and the count. */
static inline void tensor_lease_end(struct tensor_lease *l)
{
	struct session *s = l->session;
	uint32_t slot = ref_slot(l->ref);

	lease_object_give(l);
	lease_release(s, slot);
	use_count_leave(&s->users);
}
