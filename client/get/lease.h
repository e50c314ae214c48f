/* SPDX-License-Identifier: Apache-2.0 */
/* Getting the tensor of a name. */
#pragma once

#include <tensorlease/tensorlease.h>

/*
 * tl_get() in full, also for tensors that are not mapped yet. LEASE_HANDLE may be among the flags.
 */
int lease_get(tl_client *client, const char *name, const tl_get_options *want,
	      DLManagedTensorVersioned **out);
