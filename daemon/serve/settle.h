/* SPDX-License-Identifier: Apache-2.0 */
/* SETTLE: a request that is answered once all work is done that earlier messages began. */
#pragma once

#include "daemon/serve/peer.h"

struct settling {
	struct list list; /* of struct settle, oldest first */
	uint64_t rounds;  /* how often the loop has asked for all events */
};

void settle_add(struct settling *settling, struct peer *peer, uint32_t serial);
/* To be called before the loop asks for all events. True: a SETTLE came after the last time. It
 * must not be answered before, since earlier messages on other sockets may not have been seen. */
bool settle_round(struct settling *settling);
/* Answers the oldest, which may drop its peer. False: none may be answered yet. */
bool settle_answer_one(struct settling *settling);
