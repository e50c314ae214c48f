/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/connection/answer.h"
#include "client/connection/call.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/process.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "util/cancel.h"
#include "util/clock.h"

/* Pause between attempts to connect. */
#define PAUSE_NS (20 * NS_PER_MS)

/* The first replaces the session that is found dead, the second its successor if that dies too. */
enum { RENEWALS_MAX = 2 };

struct call call_begin(tl_client *client, int64_t timeout_ns)
{
	return (struct call){ .client = client,
			      .timeout_ns = timeout_ns,
			      .deadline = timeout_ns ? deadline_after(timeout_ns) : 0 };
}

struct call call_begin_request(tl_client *client)
{
	return (struct call){ .client = client, .connected = true };
}

int call_once(int r, const char *format, ...)
{
	char text[TL_NAME_MAX + 80];
	va_list args;

	if (r != SESSION_E_ENDED)
		return r;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return tl_fail(-ENOTCONN, "the daemon ended the connection; %s", text);
}

/* Pauses: a daemon that is missing, or that ends all connections, would keep us busy otherwise. At
 * the deadline @until the call fails with @why, for which the caller has set the text. */
static int call_pause(const struct call *c, int64_t until, int why)
{
	int64_t left = deadline_left_ns(until);

	if (left == 0)
		return why;
	if (nap(left < PAUSE_NS ? left : PAUSE_NS) && c->signals)
		return tl_fail(-EINTR, "the wait was interrupted by a signal");
	return deadline_passed(until) ? why : 0;
}

/* A call that waits looks for a daemon until its own deadline. Connecting is a round trip, so a
 * daemon that takes the connection has the client's timeout to answer. */
static struct connect_until renew_waiting(const struct call *c)
{
	int64_t answered = client_deadline(c->client);

	return (struct connect_until){ c->deadline < answered ? c->deadline : answered, answered };
}

/* The deadline for connecting again. A call that waits for space may have waited for longer than
 * the client's timeout already. It gets that timeout once more, as it does for its answer. */
static int64_t renew_deadline(struct call *c)
{
	int64_t until = call_deadline(c), timeout = c->client->timeout_ns, fresh, last;

	if (!c->space_deadline || timeout < 0)
		return until;
	fresh = client_deadline(c->client);
	if (__builtin_add_overflow(c->space_deadline, timeout, &last) || fresh < last)
		last = fresh;
	return last > until ? last : until;
}

static int renew(struct call *c, struct session *old)
{
	int64_t deadline;

	if (c->timeout_ns)
		return client_renew(c->client, old, renew_waiting(c));
	deadline = renew_deadline(c);
	return client_renew(c->client, old, (struct connect_until){ deadline, deadline });
}

/* Connects again. Daemons may die again and again while a call waits for space; that is no reason
 * to give up. But a call that waits only for space does not wait for a daemon. */
static int call_renew(struct call *c, struct session *old)
{
	int64_t until = c->timeout_ns ? c->deadline : 0;
	int r = renew(c, old);

	if (!r && c->renewals++ < RENEWALS_MAX)
		return 0;
	if (!r && !until)
		until = c->space_deadline;
	if (!r)
		r = tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
			    c->client->address.path);
	/* do not wait for a daemon that has refused for good */
	if (r == -ECONNABORTED || r == -EACCES || r == -EPROTONOSUPPORT)
		return r;
	return !until || process_exiting() ? r : call_pause(c, until, r);
}

static bool usable(const struct call *c, struct session *s)
{
	return !c->connected || (session_served(s) && !atomic_load(&s->ended));
}

int call_run(struct call *c, call_attempt *attempt, void *context)
{
	for (;;) {
		struct session *s = atomic_load(&c->client->session);
		struct use use = { .session = s };
		int r = LEASE_E_UNSERVED;

		if (call_interrupted(c))
			return tl_fail(-ECANCELED, "the wait was interrupted");
		if (c->timeout_ns) /* the request may come at the end of the wait */
			c->request_deadline = 0;
		c->spent = false;
		if (s) {
			r = session_usable(s);
			if (r)
				return r;
			r = LEASE_E_UNSERVED;
		}
		if (s && use_count_enter(&s->users)) {
			if (atomic_load_explicit(&s->has_child_holds, memory_order_relaxed))
				child_holds_check(s);
			if (usable(c, s))
				r = attempt(c, &use, context);
			if (!r)
				return 0;
			if (!c->spent)
				client_leave(&use);
		}
		switch (r) {
		case LEASE_E_STALE:
		case SESSION_E_ADOPTED:
			break;
		case LEASE_E_FORKING:
			process_wait_fork();
			break;
		case LEASE_E_UNSERVED:
		case SESSION_E_UNSENT:
		case SESSION_E_ENDED:
			r = call_renew(c, s);
			if (r)
				return r;
			break;
		case CALL_E_STALE:
			if (c->remade)
				return -ESTALE;
			c->remade = true;
			c->request_deadline = 0; /* data was written in between, however slowly */
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

/* ---- Requests ---- */

struct asking {
	void *message;
	const char *what;
	struct conn_message *answer;
	struct client_list *list; /* or NULL */
};

/* Returns the maximum length of a list. Clients may come and go while they are listed, so a list
 * may have more of them than the daemon at any one time. */
static uint64_t list_max(enum client_list_kind kind, const struct catalog_view *catalog)
{
	switch (kind) {
	case LIST_CLIENTS:
		return 4 * (uint64_t)catalog->max_clients;
	case LIST_TENSORS:
		return catalog->slots;
	case LIST_DEVICES:
		return WIRE_DEVICES_MAX;
	case LIST_STREAMS:
		return CATALOG_STREAMS;
	case LIST_MEMBERS:
		return STREAM_MEMBERS;
	case LIST_HELD:
		return 4 * (uint64_t)catalog->max_clients * catalog->slots;
	case LIST_USERS:
		break;
	}
	return WIRE_USERS_MAX;
}

/* Counts one more received entry. Fails if the list is longer than it can be. */
static int list_count(const struct asking *a, const struct session *s)
{
	uint64_t max = list_max(a->list->kind, &s->catalog);

	if (++a->list->told <= max)
		return 0;
	return tl_fail(
		-EPROTO,
		"%s: the daemon at %s told of more than %llu entries, the maximum of this list; "
		"check who runs it",
		a->what, s->client->address.path, (unsigned long long)max);
}

static int request_attempt(struct call *c, const struct use *use, void *context)
{
	const struct asking *a = context;
	int r;

	users_call(&use->session->users, 1);
	r = session_call(use->session, a->message, call_deadline(c), a->answer);
	users_call(&use->session->users, -1);
	r = call_once(r, "%s was not answered", a->what);
	if (!r && a->list && a->answer->header.type != WIRE_DONE &&
	    a->answer->header.type != WIRE_ERROR)
		r = list_count(a, use->session);
	return call_done(c, use, r);
}

static int request_until(struct tl_client *client, int64_t deadline, struct asking *a,
			 unsigned expected)
{
	struct call c = call_begin_request(client);
	int r;

	c.request_deadline = deadline;
	r = call_run(&c, request_attempt, a);
	if (r || (!expected && a->answer->header.type != WIRE_ERROR))
		return r;
	return answer_expect(a->answer, expected, a->what);
}

int client_request(struct tl_client *client, void *message, unsigned expected, const char *what,
		   struct conn_message *answer)
{
	struct asking a = { .message = message, .what = what, .answer = answer };

	return request_until(client, client_deadline(client), &a, expected);
}

int client_request_next(struct tl_client *client, struct client_list *list, void *message,
			const char *what, struct conn_message *answer)
{
	struct asking a = { .message = message, .what = what, .answer = answer, .list = list };
	int64_t began = now_mono_ns();
	int r;

	if (list->left_ns == 0)
		return tl_fail(-ETIMEDOUT,
			       "%s: the daemon at %s told of one after the other for all of the "
			       "client's timeout, %lld ms, and came to no end",
			       what, client->address.path,
			       (long long)(client->timeout_ns / NS_PER_MS));
	r = request_until(client, deadline_after(list->left_ns), &a, 0);
	if (list->left_ns > 0) {
		list->left_ns -= now_mono_ns() - began;
		if (list->left_ns < 0)
			list->left_ns = 0;
	}
	return r;
}
