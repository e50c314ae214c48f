/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handovers: a client that holds a tensor has us keep it until another client has received it
 * (docs/protocol/leases.md, Handing on). A handover ends with RECEIVE, when its time is over, or
 * with the connection of the client that handed the tensor on. Loop thread only.
 */
#pragma once

#include "daemon/state/lease.h"

enum { CLIENT_HANDOVERS_MAX = 1024 };

struct handover_request {
	uint64_t ref, id;
	uint64_t ttl_ns; /* 0: for ever */
};

/* Hands on a tensor that @c holds. Does nothing if @c has done so with that id. STATE_E_STALE: @c
 * does not hold it; STATE_E_HANDOVERS: it has handed on too many; -ENOMEM, -ENOSPC, or an outcome
 * of account_take(). */
int handover_new(struct state *st, struct client *c, const struct handover_request *rq);
/* Makes the lease of @c count, and ends the handover. STATE_E_NOT_FOUND: @c does not hold it, or
 * the tensor has ended. */
int handover_receive(struct state *st, struct client *c, uint64_t ref, uint64_t id);
/* Ends at most *@budget handovers of a client whose connection is over. True: it has no more. */
bool handovers_leave(struct state *st, struct client *c, unsigned *budget);
/* Ends handovers whose time has passed. lifetime_due() says when to call. */
void handovers_expire(struct state *st, int64_t now);
/* Restores the handovers of clients that are still connected. To be called when rows and clients
 * are adopted, and no retired row stands at a holding. -ENOMEM, CHARGE_E_FULL. */
int handovers_adopt(struct state *st);
