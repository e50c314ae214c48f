/* SPDX-License-Identifier: Apache-2.0 */
/* Creates that wait: for room, or for a worker to make their segment. And segments on their way
 * out. */
#pragma once

#include "daemon/serve/peer.h"
#include "daemon/state/tensor.h"

/* Answers CREATE, or what is like it, now or later. */
void space_create(struct peer *peer, uint32_t serial, const struct tensor_request *rq,
		  int64_t timeout_ns);
/* The peer is going. */
void space_forget(struct peer *peer);
/* Tries the waiting ones again, answers those whose time is over, and sees doomed segments off. */
void space_settle(struct server *server);
/* Ends all of it; the jobs with the workers end soon. */
void space_stop(struct server *server);
/* Is there work that goes on without a message? */
bool space_busy(const struct server *server);
