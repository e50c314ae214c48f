/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: the daemon grants it, one draft at a time. */
#pragma once

#include "client/publish/draft.h"
#include "client/connection/call.h"

extern const struct memory_kind shared_kind;

/* An attempt to make the draft that @request describes, which may have no name. */
int shared_draft_new(struct call *c, const struct use *use, const struct draft_request *request,
		     struct tl_draft **out);

/* After MAPPING_E_LET_GO: from now on the daemon grants drafts there only with a descriptor. */
void shared_tell_let_go(struct session *s, const struct wire_draft *granted);
