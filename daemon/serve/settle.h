/* SPDX-License-Identifier: Apache-2.0 */
/* SETTLE: a request that is answered when no work is left that earlier messages began. */
#pragma once

#include "daemon/serve/peer.h"

struct settling {
	struct list list; /* of struct settle, oldest first */
	uint64_t rounds;  /* how often the loop has asked for all events */
};

void settle_add(struct settling *settling, struct peer *peer, uint32_t serial);
/* The loop is about to ask for all events. Is there a SETTLE that came after the last time? It must
 * not be answered before: what came earlier elsewhere may not have been seen. */
bool settle_round(struct settling *settling);
/* Answers the oldest, which may drop its peer. False: there is none that may be answered. */
bool settle_answer_one(struct settling *settling);
