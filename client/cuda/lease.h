/* SPDX-License-Identifier: Apache-2.0 */
/* Leases on tensors that lie on a GPU. */
#pragma once

#include "client/tensor_lease.h"

/* As tensor_lease_new(), for a row on a device. */
int cuda_lease_new(const struct use *use, uint64_t ref, const struct row_head *h,
		   const tl_get_options *want, int64_t deadline, DLManagedTensorVersioned **out);
/* Likewise without a request: LEASE_E_UNMAPPED if its segment is not open. */
int cuda_lease_known(const struct use *use, uint64_t ref, const struct row_head *h,
		     const tl_get_options *want, DLManagedTensorVersioned **out);

/* A lease on a tensor on a GPU with nothing opened: no data, device number -1. As tl_get(). */
int tensor_lease_get_handle(tl_client *client, const char *name, const tl_get_options *want,
			    DLManagedTensorVersioned **out);

/* The handle of the event that an unfinished row has. */
int cuda_row_event(const struct session *s, const struct catalog_row *row,
		   unsigned char handle[64]);

void cuda_lease_delete(DLManagedTensorVersioned *managed);

/* The thread's: has the GPU done what its user queued? cuda_lock. */
bool cuda_lease_idle(struct tensor_lease *l);
/* Then: without the lock. */
void cuda_lease_end(struct tensor_lease *l);
