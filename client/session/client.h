/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client: an address and the session that it has there now. It lives until tl_close() was called
 * and the last of its sessions has drained.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "client/session/address.h"
#include "client/session/session.h"
#include "util/clock.h"
#include "util/list.h"

enum { CLIENT_TIMEOUT_DEFAULT_S = 10 };

struct tl_client {
	/* The current one; NULL in a forked child that has not connected yet. */
	_Atomic(struct session *) session;
	_Atomic uint32_t refs; /* 1 until tl_close(), 1 for each session that has not drained */
	struct list link;      /* among all clients of the process; process.c */
	int64_t timeout_ns;
	uint32_t flags;
	struct address address;

	pthread_mutex_t mutex;
	pthread_cond_t renewed;
	struct list watches;	  /* of struct tl_watch, by of_client; get/watch.c */
	struct list belows;	  /* of struct below; get/below.c */
	struct session *sessions; /* all ever made, newest first: a get may look at an old one */
	/* The connection that a thread is making, whose descriptors a forked child closes. */
	struct session_peer *making;
	bool connecting;
	_Atomic bool closed;
	_Atomic uint32_t wary; /* waits that are still to sleep in short slices; get/sleep.h */
	_Atomic uint32_t wary_waits;   /* how many they were when it last became so */
	_Atomic int64_t wary_slice_ns; /* how long those sleep; 0: not known yet */
};

/* A session and the count that one call holds on it. */
struct use {
	struct session *session;
};

static inline void client_leave(struct use *use)
{
	users_leave(&use->session->users);
}

/* Puts a new session in the place of @old, unless somebody did. */
int client_renew(struct tl_client *client, struct session *old, int64_t deadline);

/* When a request made now has to be answered. */
static inline int64_t client_deadline(const struct tl_client *client)
{
	return deadline_after(client->timeout_ns);
}

/* A client without an address, which no fork() knows yet. NULL: no memory. */
struct tl_client *client_new(void);
/* Its first session, and the list of all clients. 0, or a negative errno. */
int client_connect(struct tl_client *client);
/* The session it has, which no call finds from now on, or NULL: session_close() it. */
struct session *client_close(struct tl_client *client);
void client_unref(struct tl_client *client);
/* The kinds of memory have ended what they had in the session: its resources go. */
void client_session_ended(struct session *s);
struct tl_client *client_free(struct tl_client *client); /* that was not connected */
/* Also in a forked child, whose waiters are not there. */
void client_init_renewed(struct tl_client *client);

/*
 * No more users may come; when the last has left, the session's resources go and, if its client is
 * closed too, that goes.
 */
static inline void session_close(struct session *s)
{
	users_close(&s->users);
}
