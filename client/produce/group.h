/* SPDX-License-Identifier: Apache-2.0 */
/* Many tensors published in one step. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

int group_create(tl_client *client, const tl_group_item *items, size_t count, int64_t timeout_ns,
		 tl_group **out);
DLTensor *group_tensor(tl_group *group, size_t index); /* NULL: there is none */
int group_commit(tl_group *group);		       /* consumes it */
tl_group *group_free(tl_group *group);		       /* not published, unless it was */

/* tl_put_many(), with options that are checked. */
int group_put(tl_client *client, const char *const *names, const DLTensor *const *sources,
	      size_t count, const tl_put_options *o);
