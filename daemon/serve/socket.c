/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel knows of a socket: its user, and the descriptors in flight; see socket.h.
 *
 * The kernel does not tell how many descriptors a client has received. But no message takes less of
 * its socket's queue than QUEUED_MIN, so the queue's fill is a bound. The kernel is asked for it
 * when a client is to get one more descriptor, and then for a few other clients too. So only a part
 * of the counted descriptors can have been received. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "daemon/serve/socket.h"
#include "proto/wire.h"

enum {
	QUEUED_MIN = 512, /* bytes; a message takes 768 or more in 64-bit kernels */
	LOOKS = 4,	  /* clients that are looked at for each descriptor */
	LOOKS_MORE = 64,  /* clients that are looked at before one is refused */
};

void flights_init(struct flights *flights, struct pool *pool)
{
	flights->pool = pool;
	list_init(&flights->sent);
}

void flight_init(struct flight *f, struct flights *flights, struct account *account, int fd_peek)
{
	*f = (struct flight){ .flights = flights, .account = account, .fd_peek = fd_peek };
	list_init(&f->link);
}

static void sent_set(struct flight *f, unsigned sent)
{
	unsigned fewer = f->sent - sent;

	f->sent = sent;
	if (!sent)
		list_del(&f->link);
	if (fewer)
		account_give(f->account, f->flights->pool, fewer);
}

void flight_end(struct flight *f)
{
	assert(!f->queued);
	sent_set(f, 0);
}

bool flight_look(struct flight *f)
{
	unsigned messages;
	int bytes;

	if (f->sent && !ioctl(f->fd_peek, SIOCOUTQ, &bytes)) {
		messages = (unsigned)bytes / QUEUED_MIN;
		if (messages < f->sent)
			sent_set(f, messages);
	}
	return f->sent;
}

static void look_at_some(struct flights *flights, unsigned most)
{
	struct flight *f;

	for (; most && !list_empty(&flights->sent); most--) {
		f = list_first_entry(&flights->sent, struct flight, link);
		list_del(&f->link);
		list_add_tail(&flights->sent, &f->link);
		flight_look(f);
	}
}

bool flight_has_room(struct flight *f)
{
	return f->sent < WIRE_FDS_UNREAD_MAX || (flight_look(f), f->sent < WIRE_FDS_UNREAD_MAX);
}

int flight_take(struct flight *f)
{
	int r;

	flight_look(f);
	look_at_some(f->flights, LOOKS);
	r = account_take(f->account, f->flights->pool, 1);
	if (r) {
		look_at_some(f->flights, LOOKS_MORE);
		r = account_take(f->account, f->flights->pool, 1);
	}
	f->queued += !r;
	return r;
}

void flight_sent(struct flight *f)
{
	f->queued--;
	if (!f->sent++)
		list_add_tail(&f->flights->sent, &f->link);
}

void flight_give(struct flight *f)
{
	f->queued--;
	account_give(f->account, f->flights->pool, 1);
}

/* ---- the user at the other end --------------------------------------------------------------- */

static int credentials(int fd_peek, struct ucred *cred)
{
	socklen_t length = sizeof(*cred);

	return getsockopt(fd_peek, SOL_SOCKET, SO_PEERCRED, cred, &length) ? -errno : 0;
}

bool identity_is_nobody(int fd_peek)
{
	struct ucred cred;

	return !credentials(fd_peek, &cred) && cred.uid == IDENTITY_OVERFLOW_UID;
}

int identity_groups(int fd_peek, gid_t **groups, unsigned *count)
{
	socklen_t length = 0;

	*groups = NULL;
	*count = 0;
	if (!getsockopt(fd_peek, SOL_SOCKET, SO_PEERGROUPS, NULL, &length) || errno != ERANGE)
		return 0; /* it has none */
	*groups = malloc(length);
	if (!*groups)
		return -ENOMEM;
	if (getsockopt(fd_peek, SOL_SOCKET, SO_PEERGROUPS, *groups, &length))
		return -errno;
	*count = (unsigned)(length / sizeof(gid_t));
	return 0;
}

int identity_of(int fd_peek, struct client_identity *who)
{
	struct ucred cred;
	int r = credentials(fd_peek, &cred);

	if (r)
		return r;
	*who = (struct client_identity){ .uid = cred.uid,
					 .gid = cred.gid,
					 .pid = (uint32_t)cred.pid };
	return 0;
}
