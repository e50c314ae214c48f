/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that asks and changes nothing, and so can be made again: at once if something changed
 * under it, after fork(), and on another session if the daemon does not serve the one that it has.
 */
#pragma once

#include "client/session/client.h"
#include "client/session/hold.h"

struct call {
	tl_client *client;
	int64_t timeout_ns;		   /* for how long it waits; 0: it does not */
	int64_t deadline;		   /* until when it goes on without a daemon, if it waits */
	int64_t request_deadline;	   /* for what an attempt asks the daemon */
	unsigned renewals;		   /* since a session has served it */
	bool signals;			   /* one that comes ends it, with -EINTR */
	const _Atomic uint32_t *interrupt; /* or NULL: -ECANCELED if it is not interrupt_value */
	uint32_t interrupt_value;
};

/* @timeout_ns: < 0: without end. */
struct call call_begin(tl_client *client, int64_t timeout_ns);

/*
 * Calls @attempt with the current session until it returns something else than LEASE_E_GONE,
 * _FORKING or _UNSERVED, or SESSION_E_*, and returns that. When it returns 0 the count in
 * @use is its own. Without a daemon a call that waits connects again and again until its deadline,
 * and then fails as the last attempt did; another one does so once.
 */
int call_run(struct call *c, int (*attempt)(struct call *c, const struct use *use, void *context),
	     void *context);

/* The end of an attempt that keeps no count. */
static inline int call_done(const struct call *c, const struct use *use, int r)
{
	(void)c;
	if (!r)
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
