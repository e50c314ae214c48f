/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CLIENTS and HOLDINGS, and requests that are answered in steps: those that look at many clients or
 * slots take many turns of their user. Meanwhile the connection reads no further messages, so that
 * answers stay in order.
 */
#pragma once

#include "daemon/serve/peer.h"

enum { LISTING_LOOKS = 256 }; /* at clients or slots, in one step */

/* Lets the turns of @peer call @step until that calls listing_end(). Starts after client @after. */
void listing_begin(struct peer *peer, uint32_t serial, uint64_t after,
		   void (*step)(struct peer *peer));
/* To be called before the answer is sent. Returns its serial. */
uint32_t listing_end(struct peer *peer);
/* The next client whose peer @fits; listing.id is the last one looked at. NULL: there is none, or
 * with *@more the search goes on in the next step. */
struct peer *listing_next(struct peer *peer,
			  bool (*fits)(const struct peer *peer, const struct peer *other),
			  bool *more);

void handle_clients(struct peer *peer, struct conn_message *m);
void handle_holdings(struct peer *peer, struct conn_message *m);
