/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: a client announces that it is going to publish a name that means nothing yet, so that
 * others need not do the same work. It has the claim until somebody publishes the name, or until it
 * gives the claim up or ends. Then the client that has waited longest gets the claim. Publishing
 * needs no claim, and a claim stops nobody from publishing. Loop thread only.
 */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/state.h"

enum { CLIENT_CLAIMS_MAX = 256 }; /* of one client, including the claims that it waits for */

/* What became of a request. */
enum claim_outcome {
	CLAIM_WAITS, /* a notice tells it later */
	CLAIM_YOURS,
	CLAIM_PUBLISHED,
	CLAIM_OTHERS,
};

struct claim_request {
	uint32_t serial; /* which also identifies the claim to the client */
	uint32_t again;	 /* the serial of its first request for this claim; 0: this is the first */
	bool wait;	 /* while another client has the claim */
};

/*
 * Claims @name for @c. Returns STATE_E_CLAIMS if @c has too many, STATE_E_NOTICES, -ENOMEM,
 * -ENOSPC, or an outcome of account_take().
 */
int claim_new(struct state *st, struct client *c, const struct name_key *name,
	      const struct claim_request *rq, enum claim_outcome *what);
/* Gives up the client's claim on @name, if there is one. */
void claim_end(struct state *st, struct client *c, const struct name_key *name);
/* Gives up the client's claims of the request with that serial, also one that waits. */
void claims_end(struct state *st, struct client *c, uint32_t serial);
/* Ends all claims and waits of a client that ends. */
void claims_leave(struct state *st, struct client *c);
/* To be called when the name with that index was published: ends the claim on it. */
void claims_published(struct state *st, uint32_t name);
/* Answers up to @n waiting clients whose names were published. True: there are more. */
bool claims_go(struct common *common, unsigned n);
/*
 * Restores the claims that a former daemon granted to clients that are still connected, unless
 * their names have been published. To be called after client_adopt() of all. -ENOMEM,
 * CHARGE_E_FULL.
 */
int claims_adopt(struct state *st);
