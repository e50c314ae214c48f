/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: attempts that are repeated until one succeeds or the deadline passes. An attempt is made
 * again at once if something changed under it, after fork(), and on another session if the daemon
 * does not serve the present one. An attempt that changes something must not be made twice. So it
 * passes the outcome of its request through call_once(), since after SESSION_E_ENDED it is unknown
 * whether the daemon carried the request out. And it asks by session_call_unless(), which finds out
 * whether a former daemon carried it out before the next one is asked.
 */
#pragma once

#include "client/connection/client.h"
#include "client/connection/lease_protocol.h"

struct call {
	tl_client *client;
	int64_t timeout_ns; /* how long it waits; 0: not at all */
	int64_t deadline;   /* of a call that waits: until then it keeps looking for a daemon */
	int64_t request_deadline; /* call_deadline(); 0: not needed yet */
	int64_t space_deadline;	  /* call_space_deadline(); 0: not needed yet */
	unsigned renewals;	  /* new sessions since one last served it */
	bool connected;		  /* it needs a connection, not only the catalog */
	bool remade;		  /* CALL_E_STALE has already led to another attempt */
	bool spent;   /* the count in @use has become a draft's, even if the attempt fails */
	bool signals; /* a signal ends it, with -EINTR */
	const _Atomic uint32_t *interrupt; /* or NULL: -ECANCELED if it is not interrupt_value */
	uint32_t interrupt_value;
};

/* @timeout_ns: < 0 means no limit. */
struct call call_begin(tl_client *client, int64_t timeout_ns);
/* Begins a call that makes a request, and so needs the connection. */
struct call call_begin_request(tl_client *client);

typedef int call_attempt(struct call *c, const struct use *use, void *context);

/*
 * Calls @attempt with the current session until it returns something other than LEASE_E_STALE,
 * _FORKING or _UNSERVED, SESSION_E_* or CALL_E_STALE, and returns that. When it returns 0, the
 * attempt keeps the count in @use. Without a daemon a call that waits connects again and again
 * until its deadline, and then fails as the last attempt did. A call that does not wait connects
 * twice at most.
 */
int call_run(struct call *c, call_attempt *attempt, void *context);

/* The time by which the daemon has to answer an attempt's request. The clock is read only by
 * attempts that ask. */
static inline int64_t call_deadline(struct call *c)
{
	if (!c->request_deadline)
		c->request_deadline = client_deadline(c->client);
	return c->request_deadline;
}

/* The time until which a call waits for space, if it was given @timeout_ns for that. */
static inline int64_t call_space_deadline(struct call *c, int64_t timeout_ns)
{
	if (!c->space_deadline)
		c->space_deadline = deadline_after(timeout_ns);
	return c->space_deadline;
}

/* call_deadline(), and the time until which a get with a timeout waits for a tensor's producer. */
static inline struct get_until call_until(struct call *c)
{
	int64_t answer = call_deadline(c);

	return (struct get_until){ answer, c->timeout_ns ? c->deadline : answer };
}

/* Turns the outcome of a request that must not be made twice into the outcome of the call: after
 * SESSION_E_ENDED the call fails, and the error @format says what is unknown. */
__attribute__((format(printf, 2, 3))) int call_once(int r, const char *format, ...);

/* Ends an attempt that succeeded without keeping the count in @use: gives the count back. Returns
 * @r. */
static inline int call_done(const struct call *c, const struct use *use, int r)
{
	if (!r && !c->spent)
		use_count_leave(&use->session->users);
	return r;
}

static inline bool call_interrupted(const struct call *c)
{
	return c->interrupt && atomic_load(c->interrupt) != c->interrupt_value;
}

/* Gets the client's session and a count on it, for a call that reads the catalog without a lease. A
 * dead daemon's catalog is not used: connects again, or fails. */
int call_look(tl_client *client, struct use *use);

/* Sends to the current session, or to a new one if that has ended, and waits for an answer of type
 * @expected; 0 means any type but ERROR. Returns 0 or a negative errno. */
int client_request(struct tl_client *client, void *message, unsigned expected, const char *what,
		   struct conn_message *answer);

enum client_list_kind {
	LIST_CLIENTS,
	LIST_USERS,
	LIST_TENSORS,
	LIST_DEVICES,
	LIST_STREAMS,
	LIST_MEMBERS, /* of a stream */
	LIST_HELD,    /* tensors, by each client */
};

/*
 * A list that the daemon sends entry by entry. A malicious daemon may never end it. So all requests
 * of one list together have the client's timeout, not counting the time that a visitor takes in
 * between. The length has a maximum too, since a caller that keeps the entries would run out of
 * memory.
 */
struct client_list {
	enum client_list_kind kind;
	int64_t left_ns; /* < 0: no limit */
	uint64_t told;	 /* entries received */
};

static inline struct client_list client_list(const struct tl_client *client,
					     enum client_list_kind kind)
{
	return (struct client_list){ .kind = kind, .left_ns = client->timeout_ns };
}

/* Asks for the next entry, as client_request() does with any type of answer. DONE means that there
 * is none. */
int client_request_next(struct tl_client *client, struct client_list *list, void *message,
			const char *what, struct conn_message *answer);
