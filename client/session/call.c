/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <time.h>

#include "client/error.h"
#include "client/session/call.h"
#include "client/session/pin.h"
#include "client/session/process.h"
#include "client/session/request.h"
#include "util/clock.h"

/* Between attempts to connect. */
#define PAUSE_NS (20 * NS_PER_MS)

struct call call_begin(tl_client *client, int64_t timeout_ns)
{
	return (struct call){ .client = client,
			      .timeout_ns = timeout_ns,
			      .deadline = deadline_after(timeout_ns),
			      .request_deadline = client_deadline(client) };
}

/*
 * The pause without which a daemon that is not there, or ends all connections, would keep us busy.
 * At the deadline the call fails with @why, whose text is there.
 */
static int call_pause(const struct call *c, int why)
{
	int64_t left = deadline_left_ns(c->deadline);
	struct timespec ts = { .tv_nsec = left < PAUSE_NS ? left : PAUSE_NS };

	if (left == 0)
		return why;
	if (nanosleep(&ts, NULL) && c->signals)
		return tl_fail(-EINTR, "the wait was interrupted by a signal");
	return deadline_passed(c->deadline) ? why : 0;
}

static int call_renew(struct call *c, struct session *old)
{
	bool waits = c->timeout_ns != 0;
	int64_t until = c->request_deadline;
	int r;

	if (waits && c->deadline < until)
		until = c->deadline;
	r = client_renew(c->client, old, until);
	if (!r && !c->renewals++)
		return 0;
	if (!r)
		r = tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
			    c->client->address.path);
	return !waits || r == -ECONNABORTED || process_exiting() ? r : call_pause(c, r);
}

int call_run(struct call *c, int (*attempt)(struct call *c, const struct use *use, void *context),
	     void *context)
{
	for (;;) {
		struct session *s = atomic_load(&c->client->session);
		struct use use = { .session = s };
		int r = LEASE_E_UNSERVED;

		if (call_interrupted(c))
			return tl_fail(-ECANCELED, "the wait was interrupted");
		if (c->timeout_ns) /* it may come at the end of the wait */
			c->request_deadline = client_deadline(c->client);
		if (s && users_enter(&s->users)) {
			if (atomic_load_explicit(&s->pinned, memory_order_relaxed))
				pin_look(s);
			r = attempt(c, &use, context);
			if (!r)
				return 0;
			client_leave(&use);
		}
		switch (r) {
		case LEASE_E_GONE:
		case SESSION_E_ADOPTED:
			break;
		case LEASE_E_FORKING:
			process_wait_fork();
			break;
		case LEASE_E_UNSERVED:
		case SESSION_E_UNSENT:
		case SESSION_E_LOST:
			r = call_renew(c, s);
			if (r)
				return r;
			break;
		default:
			return r;
		}
	}
}

static int look(struct call *c, const struct use *use, void *context)
{
	(void)c;
	if (!session_served(use->session) || !session_probe(use->session))
		return LEASE_E_UNSERVED;
	*(struct use *)context = *use;
	return 0;
}

int call_look(tl_client *client, struct use *use)
{
	struct call c = call_begin(client, 0);

	return call_run(&c, look, use);
}
