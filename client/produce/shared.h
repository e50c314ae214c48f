/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: the kind of memory that the daemon grants, one draft at a time. */
#pragma once

#include "client/produce/draft.h"
#include "client/session/client.h"

extern const struct memory_kind shared_kind;

/* A draft of what @want says; it may have no name. 0, or a negative errno. */
int shared_draft_new(tl_client *client, const struct draft_request *want, struct tl_draft **out);
