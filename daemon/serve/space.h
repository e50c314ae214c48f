/* SPDX-License-Identifier: Apache-2.0 */
/* Creates that wait for room, or for a worker to make their segment; and doomed segments. */
#pragma once

#include <uv.h>

#include "daemon/serve/deadline.h"
#include "daemon/serve/job.h"
#include "daemon/serve/peer.h"
#include "daemon/state/tensor.h"

struct space {
	uv_loop_t *loop;
	struct shared *shared;
	struct turns *turns;
	struct list accounts; /* of struct account, by waiter: their creates wait for room */
	unsigned waiting;     /* creates that do */
	struct jobs jobs;     /* segments that are made or destroyed */
	bool ended_left;      /* more segments may have ended than space_ended() has looked at */
	uint64_t room_seen;   /* shared.room_made when creates were last told of it */
	struct deadlines deadlines; /* of creates that wait for room */
	uv_timer_t timer;	    /* the next of them */
	int64_t timer_at;
};

/* -ENOMEM. */
int space_init(struct space *space, uv_loop_t *loop, struct shared *shared, struct turns *turns);
void space_deinit(struct space *space);
/* Answers CREATE, or a COMMIT that asks for a prefetched draft, now or later. */
void space_create(struct space *space, struct peer *peer, uint32_t serial,
		  const struct tensor_request *rq, int64_t timeout_ns);
/* Has the waiting creates tried again in their accounts' turns, if there may be room or their time
 * is over, and destroys some of the doomed segments. */
void space_settle(struct space *space);
/* Frees segments that others had open until now. */
void space_ended(struct space *space);
/* Has anything changed since space_settle() that it should see? */
bool space_unsettled(const struct space *space);
/* The daemon ends, and the peers have gone. The jobs with the workers end soon. */
void space_stop(struct space *space);
/* Is there work that continues without a message? */
bool space_busy(const struct space *space);
