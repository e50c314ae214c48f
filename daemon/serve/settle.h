/* SPDX-License-Identifier: Apache-2.0 */
/* SETTLE: a request that is answered when no work is left that earlier messages began. */
#pragma once

#include "daemon/serve/peer.h"

struct settling {
	struct list list; /* of struct settle, oldest first */
};

void settle_add(struct settling *settling, struct peer *peer, uint32_t serial);
/* Answers the oldest, which may drop its peer. False: there is none. */
bool settle_answer_one(struct settling *settling);
