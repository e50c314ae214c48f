/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that were asked for on another device than they lie on: copies that are this process's.
 */
#pragma once

#include <stdbool.h>

#include <tensorlease/tensorlease.h>

/* Must the tensor be copied to be on that device? */
bool moved_needed(const DLManagedTensorVersioned *held, DLDevice to);

/*
 * Copies a lease of ours to the device of @options, on their stream if that is a GPU;
 * TL_STREAM_NONE: the host waits for the copy. Their timeout is for the work that writes the
 * original; 0: the client's. Takes @held over, also if it fails. 0, or a negative errno.
 */
int moved_new(tl_client *client, const char *name, DLManagedTensorVersioned *held,
	      const tl_get_options *options, DLManagedTensorVersioned **out);

/* What was known of the original when it was copied; NULL: it is no such copy. */
const tl_info *moved_info(const DLManagedTensorVersioned *tensor);
/* One more tensor over the same copy, for use on @stream unless that is TL_STREAM_NONE. */
int moved_again(const DLManagedTensorVersioned *tensor, intptr_t stream,
		DLManagedTensorVersioned **out);
