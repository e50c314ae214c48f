/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel knows of a socket: its user, and the descriptors in flight. */
#pragma once

#include <sys/types.h>

#include "daemon/state/client.h"
#include "daemon/store/account.h"

/*
 * Descriptors in flight: sent to a client, or queued for it, and not received yet. Sent ones count
 * against a limit of the kernel on all that our user sends (ETOOMANYREFS in unix(7)), even when
 * their connection has ended, if the client keeps its end. Queued ones are in our own table. So
 * each counts in the share of its client's user until it is received.
 */

struct flights {
	struct list sent; /* of struct flight, by link; the next to be looked at first */
	struct pool *pool;
};

/* The descriptors in flight to one client; embedded in its peer. */
struct flight {
	struct list link;	 /* in flights->sent while some were sent */
	struct flights *flights; /* outlives us */
	struct account *account; /* the daemon's; outlives us */
	int fd_peek;		 /* the socket */
	unsigned sent;		 /* how many were sent, and perhaps not received yet */
	unsigned queued;	 /* how many are queued, or about to be sent */
};

void flights_init(struct flights *flights, struct pool *pool);
void flight_init(struct flight *f, struct flights *flights, struct account *account, int fd_peek);
/* Counts no descriptors any more. To be called when the socket is closed. */
void flight_end(struct flight *f);

/* Takes one more, to be sent or queued. Returns 0 or an outcome of account_take(). */
int flight_take(struct flight *f);
/* True if the client may be sent a further descriptor. False: it has WIRE_FDS_UNREAD_MAX to
 * receive, and is sent no more until it has received some. */
bool flight_has_room(struct flight *f);
/* To be called when a taken descriptor is in the socket. */
void flight_sent(struct flight *f);
/* To be called when a taken descriptor will not be sent. */
void flight_give(struct flight *f);

/* Finds out how many were received. True: some are left in the socket. */
bool flight_look(struct flight *f);

/* The user at the other end of a connection, as the kernel noted when it was made. */

/* The kernel shows this number for users that this user namespace does not know. */
enum { IDENTITY_OVERFLOW_UID = 65534 };

/* True if the connection belongs to IDENTITY_OVERFLOW_UID. Any user may look like that. */
bool identity_is_nobody(int fd_peek);
/* The uid, gid and pid of the other end, without groups. Returns 0, or a negative errno. */
int identity_of(int fd_peek, struct client_identity *who);
/* The supplementary groups of the other end. The caller frees *@groups, which is NULL if there are
 * none. -ENOMEM. */
int identity_groups(int fd_peek, gid_t **groups, unsigned *count);
