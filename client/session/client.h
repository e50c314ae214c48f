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

/*
 * The client's session, with a count on it: end with client_leave(). With @connected it has a
 * connection as far as we know; without it the session may be one whose daemon is away. Connects
 * again if there is none.
 */
int client_enter(struct tl_client *client, bool connected, struct use *use);
/* The same for a call that has until @deadline for all that it does; 0: the client's timeout. */
int client_enter_until(struct tl_client *client, bool connected, int64_t deadline, struct use *use);

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

/*
 * Sends to the current session, to a new one if that is gone, and takes an answer of type @want; 0:
 * of any but ERROR.
 */
int client_request(struct tl_client *client, void *message, unsigned want, const char *what,
		   struct conn_message *answer);

/* What there is a list of. */
enum client_list_kind { LIST_CLIENTS, LIST_USERS, LIST_TENSORS, LIST_DEVICES };

/*
 * A list that the daemon tells entry by entry. It may lie and tell for ever. So all requests of one
 * list together have the client's timeout, without what a visitor does in between. The length has a
 * maximum too, since a caller that keeps the entries would run out of memory.
 */
struct client_list {
	enum client_list_kind kind;
	int64_t left_ns; /* < 0: there is no end */
	uint64_t told;	 /* entries */
};

static inline struct client_list client_list(const struct tl_client *client,
					     enum client_list_kind kind)
{
	return (struct client_list){ .kind = kind, .left_ns = client->timeout_ns };
}

/* Asks for the next entry, as client_request() without a type. DONE says that there is none. */
int client_request_next(struct tl_client *client, struct client_list *list, void *message,
			const char *what, struct conn_message *answer);

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
