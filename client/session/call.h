/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: try, connect again, wait, give up at the deadline. An attempt is made again at once if
 * something changed under it, after fork(), and on another session if the daemon does not serve the
 * one that it has. An attempt that changes something takes care of that: it passes the outcome of
 * its request through call_once(), since after SESSION_E_LOST nobody knows what the daemon did, and
 * it asks by session_call_unless(), which finds out whether a former daemon has done it before the
 * next one is asked.
 */
#pragma once

#include "client/session/client.h"
#include "client/session/hold.h"

struct call {
	tl_client *client;
	int64_t timeout_ns;	  /* for how long it waits; 0: it does not */
	int64_t deadline;	  /* until when it goes on without a daemon, if it waits */
	int64_t request_deadline; /* call_deadline(); 0: not needed yet */
	unsigned renewals;	  /* since a session has served it */
	bool connected;		  /* it needs the connection, not the catalog alone */
	bool remade;		  /* after CALL_E_STALE */
	bool spent;		  /* the count in @use is a draft's, also after a failure */
	bool signals;		  /* one that comes ends it, with -EINTR */
	const _Atomic uint32_t *interrupt; /* or NULL: -ECANCELED if it is not interrupt_value */
	uint32_t interrupt_value;
};

/* @timeout_ns: < 0: without end. */
struct call call_begin(tl_client *client, int64_t timeout_ns);
/* A call that makes a request, and so needs the connection. */
struct call call_begin_request(tl_client *client);

typedef int call_attempt(struct call *c, const struct use *use, void *context);

/*
 * Calls @attempt with the current session until it returns something else than LEASE_E_GONE,
 * _FORKING or _UNSERVED, SESSION_E_* or CALL_E_STALE, and returns that. When it returns 0 the count
 * in @use is its own. Without a daemon a call that waits connects again and again until its
 * deadline, and then fails as the last attempt did; another one does so twice at most.
 */
int call_run(struct call *c, call_attempt *attempt, void *context);

/* When what an attempt asks the daemon has to be answered. The clock is read by those who ask. */
static inline int64_t call_deadline(struct call *c)
{
	if (!c->request_deadline)
		c->request_deadline = client_deadline(c->client);
	return c->request_deadline;
}

/*
 * The outcome of a request that changes something and is not to be made twice: after SESSION_E_LOST
 * the call fails, and @format says what is not known.
 */
__attribute__((format(printf, 2, 3))) int call_once(int r, const char *format, ...);

/* The end of an attempt that keeps no count. */
static inline int call_done(const struct call *c, const struct use *use, int r)
{
	if (!r && !c->spent)
		users_leave(&use->session->users);
	return r;
}

static inline bool call_interrupted(const struct call *c)
{
	return c->interrupt && atomic_load(c->interrupt) != c->interrupt_value;
}

/*
 * The client's session, for a call that reads its catalog without a lease. A dead daemon's is not
 * believed: connects again, or fails.
 */
int call_look(tl_client *client, struct use *use);

/*
 * Sends to the current session, to a new one if that is gone, and takes an answer of type @want; 0:
 * of any but ERROR.
 */
int client_request(struct tl_client *client, void *message, unsigned want, const char *what,
		   struct conn_message *answer);

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
