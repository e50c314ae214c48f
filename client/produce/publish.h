/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing by handing over. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

/*
 * Can others be told of @t's strides, since it stays where it lies? Then *@nbytes is how many bytes
 * it touches. 0, or -ENOTSUP.
 */
int strides_check(const char *name, const DLTensor *t, uint64_t flags, uint64_t *nbytes);

/* tl_publish(), with options that are checked. */
int publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
	    const tl_put_options *options, bool *copied, uint64_t *version);
