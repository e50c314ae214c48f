/* SPDX-License-Identifier: Apache-2.0 */
/* SYNC: a request that is answered once all work is done that earlier messages began. */
#pragma once

#include "daemon/serve/peer.h"

struct syncs {
	struct list list; /* of struct sync, oldest first */
	uint64_t rounds;  /* how often the loop has asked for all events */
};

void sync_add(struct syncs *syncs, struct peer *peer, uint32_t serial);
/* To be called before the loop asks for all events. True: a SYNC came after the last time. It
 * must not be answered before, since earlier messages on other sockets may not have been seen. */
bool sync_round(struct syncs *syncs);
/* Answers the oldest, which may drop its peer. False: none may be answered yet. */
bool sync_answer_one(struct syncs *syncs);
