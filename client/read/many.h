/* SPDX-License-Identifier: Apache-2.0 */
/* Gets many tensors as of one moment. */
#pragma once

#include <stddef.h>

#include <tensorlease/tensorlease.h>

/* Does the work of tl_get_many(), with options that are checked. */
int get_many(tl_client *client, const char *const *names, size_t count,
	     const tl_get_options *options, DLManagedTensorVersioned **out);
