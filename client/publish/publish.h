/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes tensors that are handed over. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

/* Checks that a tensor which stays where it lies can be published with its strides. Sets *@nbytes
 * to the number of bytes that it touches. Returns 0 or -ENOTSUP. */
int strides_check(const char *name, const DLTensor *t, uint64_t flags, uint64_t *nbytes);

/* Does the work of tl_publish(), with options that are checked. */
int publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
	    const tl_put_options *options, bool *copied, uint64_t *version);
