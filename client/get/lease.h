/* SPDX-License-Identifier: Apache-2.0 */
/* Getting the tensor of a name. */
#pragma once

#include <tensorlease/tensorlease.h>

/* Also for tensors that are not mapped yet; with LEASE_HANDLE among the flags too. */
int lease_get(tl_client *client, const char *name, const tl_get_options *options,
	      DLManagedTensorVersioned **out);
