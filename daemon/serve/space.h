/* SPDX-License-Identifier: Apache-2.0 */
/* Creates that wait for room, or for a worker to make their segment; and doomed segments. */
#pragma once

#include <uv.h>

#include "daemon/serve/peer.h"
#include "daemon/state/tensor.h"

struct space {
	uv_loop_t *loop;
	struct state *state;
	struct list waiting; /* of struct create: they wait for room */
	struct list working; /* of struct create: a worker makes their segment */
	unsigned jobs;	     /* with the workers */
	uint64_t room_seen;  /* memory.room_made when waiting creates were last tried */
	uv_timer_t timer;    /* the next deadline of a create that waits for room */
};

void space_init(struct space *space, uv_loop_t *loop, struct state *state);
/* Answers CREATE, or a COMMIT that asks for a prefetched draft, now or later. */
void space_create(struct space *space, struct peer *peer, uint32_t serial,
		  const struct tensor_request *rq, int64_t timeout_ns);
/* Tries the waiting creates again, answers those whose time is over, and destroys doomed
 * segments. */
void space_settle(struct space *space);
/* Has anything changed since space_settle() that it should see? */
bool space_unsettled(const struct space *space);
/* The daemon ends, and the peers have gone. The jobs with the workers end soon. */
void space_stop(struct space *space);
/* Is there work that goes on without a message? */
bool space_busy(const struct space *space);
