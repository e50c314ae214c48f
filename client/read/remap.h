/* SPDX-License-Identifier: Apache-2.0 */
/* Another lease on a tensor that is held already. */
#pragma once

#include <tensorlease/tensorlease.h>

struct tensor_lease;

/* Gets the tensor of @l once more, as @options says. Its timeout is for the work that writes the
 * tensor; 0: the client's. Returns 0 or a negative errno. */
int lease_again(const struct tensor_lease *l, const tl_get_options *options,
		DLManagedTensorVersioned **out);
