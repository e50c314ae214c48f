/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors in flight: sent to a client, or queued for it, and not received yet. Those in sockets
 * count against a limit that the kernel has for all that our user sends (ETOOMANYREFS in unix(7)),
 * also when their connection has ended and the client keeps its end; those that are queued are in
 * our own table. So each counts in the share of the client's user until it was received.
 */
#pragma once

#include "daemon/store/account.h"

struct flights {
	struct list sent; /* of struct flight, by link; the next to be looked at first */
	struct pool *pool;
};

/* What is in flight to one client; embedded in its peer. */
struct flight {
	struct list link;	 /* in flights->sent while some were sent */
	struct flights *flights; /* outlives us */
	struct account *account; /* the daemon's; outlives us */
	int fd_peek;		 /* the socket */
	unsigned sent;		 /* and perhaps not received yet */
	unsigned queued;	 /* or about to be sent */
};

void flights_init(struct flights *flights, struct pool *pool);
void flight_init(struct flight *f, struct flights *flights, struct account *account, int fd_peek);
/* Its socket is closed. */
void flight_end(struct flight *f);

/* One more is to be sent or queued. -EXFULL: this client has WIRE_FDS_UNREAD_MAX to receive; or
 * what account_take() returns. */
int flight_take(struct flight *f);
/* One that was taken is in the socket now, */
void flight_sent(struct flight *f);
/* or will not be sent. */
void flight_give(struct flight *f);

/* Finds out how many were received. Are there any left in the socket? */
bool flight_look(struct flight *f);
