/* SPDX-License-Identifier: Apache-2.0 */
/* Copies many tensors into one. */
#pragma once

#include <stddef.h>
#include <tensorlease/tensorlease.h>

/* Does the work of tl_gather(), with options that are checked. */
int gather(tl_client *client, const char *const *names, size_t count, const tl_gather_out *outs,
	   size_t nouts, const tl_gather_options *options);
