/* SPDX-License-Identifier: Apache-2.0 */
/* Gets the tensor of a name. */
#pragma once

#include <tensorlease/tensorlease.h>

struct row_head;
struct use;

/* lease_take_mapped() for a tensor on a device or an evictable one, once @use has taken the lease.
 * Fails as that does. */
int lease_take_unusual(const struct use *use, uint64_t ref, const struct row_head *head,
		       const tl_get_options *options, DLManagedTensorVersioned **out);

int lease_too_many(const char *name); /* -EOVERFLOW, with its text */

/* Does all of tl_get(), also for tensors that are not mapped yet. LEASE_HANDLE may be among the
 * flags. */
int lease_get(tl_client *client, const char *name, const tl_get_options *options,
	      DLManagedTensorVersioned **out);
