/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CLIENTS and HOLDINGS, and how such a request is answered in steps: one that looks at many clients
 * or slots takes many turns of its user. Its connection reads no further messages meanwhile, so
 * that answers stay in order.
 */
#pragma once

#include "daemon/serve/peer.h"

enum { LISTING_LOOKS = 256 }; /* at clients or slots, in one step */

/* The turns of @peer call @step until that calls listing_end(). It starts after client @after. */
void listing_begin(struct peer *peer, uint32_t serial, uint64_t after,
		   void (*step)(struct peer *peer));
/* Comes before the answer. Returns its serial. */
uint32_t listing_end(struct peer *peer);
/*
 * The next client whose peer @fits; listing.id is the last one that was looked at. NULL: there is
 * none, or with *@more it is to be looked for in the next step.
 */
struct peer *listing_next(struct peer *peer,
			  bool (*fits)(const struct peer *peer, const struct peer *other),
			  bool *more);

void handle_clients(struct peer *peer, struct conn_message *m);
void handle_holdings(struct peer *peer, struct conn_message *m);
