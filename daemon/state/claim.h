/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a client says that it is going to publish a name which means nothing yet, so that others
 * need not do the same work. It has the claim until somebody publishes the name, or until it gives
 * the claim up or ends; then the next who waits has it. Publishing needs no claim, and a claim
 * keeps nobody from it. Loop thread only.
 */
#pragma once

#include "daemon/state/notice.h"
#include "daemon/state/state.h"

enum { CLIENT_CLAIMS_MAX = 256 }; /* of one client, those that it waits for included */

struct claim_request {
	uint32_t serial; /* by which the client calls the claim, too */
	uint32_t again;	 /* unless this is not 0: it asked with that serial first */
	bool wait;	 /* it is told later, by a notice, if somebody else has it */
};

/*
 * Claims that name for @c. *@what is WIRE_CLAIM_*, or 0: it waits. STATE_E_CLAIMS: it has too many;
 * STATE_E_NOTICES; -ENOMEM; -ENOSPC; or what account_take() returns.
 */
int claim_new(struct state *st, struct client *c, const struct name_key *name,
	      const struct claim_request *rq, unsigned *what);
/*
 * The client gives up the claim that has that serial or, if @serial is 0, the one that it has on
 * @name. Nothing happens if there is none.
 */
void claim_end(struct state *st, struct client *c, uint32_t serial, const struct name_key *name);
/* The client ends. */
void claims_leave(struct state *st, struct client *c);
/* The name with that index was published. */
void claims_published(struct state *st, uint32_t name);
/* Answers @n of those who waited for names that were published. True: there are more. */
bool claims_go(struct shared *shared, unsigned n);
/* After client_adopt() of all: who is connected has the claims still that a former daemon granted,
 * unless their names are published by now. -ENOMEM, CHARGE_E_FULL. */
int claims_adopt(struct state *st);
