/* SPDX-License-Identifier: Apache-2.0 */
/* Creates waiting for space, or for a worker to make their segment; and segments to destroy. */
#pragma once

#include <uv.h>

#include "daemon/serve/jobs.h"
#include "daemon/serve/peer.h"
#include "daemon/state/tensor.h"
#include "util/heap.h"

struct space {
	uv_loop_t *loop;
	struct common *common;
	struct turns *turns;
	struct list accounts;	/* of struct account, by waiter: they have waiting creates */
	unsigned waiting;	/* creates waiting for space */
	unsigned alone;		/* of these: those that are tried only while `making` is 0 */
	unsigned making;	/* creates with workers */
	uint64_t begun;		/* how many creates workers have begun with */
	struct jobs jobs;	/* jobs that make or destroy segments */
	bool ended_left;	/* more segments may have ended than space_ended() has looked at */
	uint64_t space_seen;	/* common.space_freed when creates were last told */
	struct histogram waits; /* how long creates waited for space, in vain or not */
	struct heap due;	/* creates waiting for space, by the time of their next try */
	uv_timer_t timer;	/* runs until the next of these times */
	int64_t timer_at;
};

void space_init(struct space *space, uv_loop_t *loop, struct common *common, struct turns *turns);
/* Answers CREATE, or a COMMIT that asks for a prefetched draft, now or later. */
void space_create(struct space *space, struct peer *peer, uint32_t serial,
		  const struct tensor_request *rq, int64_t timeout_ns);
/* Queues another try of waiting creates in their accounts' turns, if there may be space or their
 * time is over, and destroys some segments. */
void space_run_due(struct space *space);
/* Frees segments that no client has open any more. */
void space_ended(struct space *space);
/* True if space_run_due() has work to do because of changes since its last call. */
bool space_has_due(const struct space *space);
/* To be called at the daemon's end, when the peers have ended. The workers' jobs end soon. */
void space_stop(struct space *space);
/* True if there is work that continues without a message. */
bool space_busy(const struct space *space);
