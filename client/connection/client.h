/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client: an address and its present session there. It lives until tl_close() was called and the
 * last of its sessions has drained.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "client/connection/address.h"
#include "client/connection/notifier.h"
#include "client/connection/session.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/list.h"

enum { CLIENT_TIMEOUT_DEFAULT_S = 10 };

/* The part of a watch that fork() uses. */
struct client_watch {
	struct list link;	  /* in client->watches; client->mutex */
	struct notifier notifier; /* a forked child closes its descriptor */
};

struct tl_client {
	/* The current one; NULL in a forked child that has not connected yet. */
	_Atomic(struct session *) session;
	_Atomic uint32_t refs; /* 1 until tl_close(), and 1 for each session that has not drained */
	struct list link;      /* among all clients of the process; process.c */
	int64_t timeout_ns;
	uint32_t flags;
	struct address address;

	pthread_mutex_t mutex;
	pthread_cond_t renewed;
	struct list watches;	  /* of struct client_watch; read/watch.c */
	struct list belows;	  /* of struct below; read/repeated_prefix.c */
	struct session *sessions; /* all that were ever made, newest first: a get may still read
				     an old one */
	/* The connection that a thread is making; a forked child ends its copy. */
	struct handshake *making;
	bool connecting;
	_Atomic bool closed;
};

/* A session and the count that one call holds on it. */
struct use {
	struct session *session;
};

static inline void client_leave(struct use *use)
{
	use_count_leave(&use->session->users);
}

/* Deadlines for connecting. */
struct connect_until {
	int64_t taken;	  /* until a daemon has taken the connection */
	int64_t answered; /* until it has answered; not earlier than `taken` */
};

/* Replaces @old by a new session, unless another thread did. Fails with -ENOTCONN while no daemon
 * takes the connection. */
int client_renew(struct tl_client *client, struct session *old, struct connect_until until);

/* The time by which a request made now has to be answered. */
static inline int64_t client_deadline(const struct tl_client *client)
{
	return deadline_after(client->timeout_ns);
}

/* Makes a client without an address, which fork() does not know yet. NULL: no memory. */
struct tl_client *client_new(void);
/* Makes its first session, and adds the client to the process's list. 0, or a negative errno. */
int client_connect(struct tl_client *client);
/* Takes the session away, so that no call finds it from now on. The caller must session_close() it.
 * NULL: there was none. */
struct session *client_close(struct tl_client *client);
void client_unref(struct tl_client *client);
/* Frees the session's resources, once the kinds of memory have ended their use of it. */
void client_session_ended(struct session *s);
struct tl_client *client_free(struct tl_client *client); /* a client that was not connected */
/* Makes the condition variable `renewed`; in a forked child anew, since the threads that wait there
 * do not exist. */
void client_init_renewed(struct tl_client *client);

/* Lets no more users in. When the last has left, the session's resources are freed, and the client
 * too if it is closed and this was its last session. */
static inline void session_close(struct session *s)
{
	use_count_close(&s->users);
}
