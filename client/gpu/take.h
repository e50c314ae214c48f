/* SPDX-License-Identifier: Apache-2.0 */
/* Taking leases on tensors that lie on a GPU. */
#pragma once

#include "client/read/lease_tensor.h"

/* tensor_lease_new() for a row on a GPU. */
int cuda_lease_new(const struct use *use, uint64_t ref, const struct row_head *h,
		   const tl_get_options *options, struct get_until until,
		   DLManagedTensorVersioned **out);
/* The same without a request: LEASE_E_UNMAPPED if the segment is not open here. */
int cuda_lease_known(const struct use *use, uint64_t ref, const struct row_head *h,
		     const tl_get_options *options, DLManagedTensorVersioned **out);

/* tl_get() of a tensor on a GPU that opens nothing: it has no data, and device number -1. */
int tensor_lease_get_handle(tl_client *client, const char *name, const tl_get_options *options,
			    DLManagedTensorVersioned **out);

/* Reads the handle of the event that an unfinished row has. */
int cuda_row_event(const struct session *s, const struct catalog_row *row,
		   unsigned char handle[64]);
