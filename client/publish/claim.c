/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims; see publish.h. A claimant has a request pending for as long as it waits. If the wait ends
 * before the answer comes, UNCLAIM takes the request back, or the claim if it was granted
 * meanwhile.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/publish.h"
#include "util/clock.h"

enum { AT_ONCE = 64 }; /* requests that wait for an answer, of a call for many names */

/* Sends UNCLAIM: by the serial of a CLAIM, with an empty name; or, with serial 0, by a name. */
static void send_unclaim(struct session *s, uint32_t claim, const char *name)
{
	alignas(8) unsigned char bytes[sizeof(struct wire_unclaim) + TL_NAME_MAX + 1];
	size_t len = strlen(name);
	struct wire_unclaim m = { .header = { .type = WIRE_UNCLAIM,
					      .length = (uint32_t)(sizeof(m) + len) },
				  .claim = claim,
				  .name_len = (uint16_t)len };

	memcpy(bytes, &m, sizeof(m));
	memcpy(bytes + sizeof(m), name, len + 1);
	session_post(s, bytes);
}

/* A CLAIM, from when it is sent until it is answered. */
struct claiming {
	struct {
		struct wire_claim fixed;
		char name[TL_NAME_MAX + 1];
	} message;
	struct request request;
	struct conn_message answer;
};

/* Sends CLAIM. Returns 0, SESSION_E_* or a negative errno. */
static int claim_ask(struct session *s, struct claiming *c, const char *name, bool wait,
		     int64_t deadline)
{
	size_t len = strlen(name);

	c->message.fixed = (struct wire_claim){
		.header = { .type = WIRE_CLAIM,
			    .length = (uint32_t)(sizeof(c->message.fixed) + len) },
		.flags = wait ? WIRE_CLAIM_WAIT : 0,
		.name_len = (uint16_t)len,
	};
	memcpy(c->message.name, name, len + 1);
	return session_ask(s, &c->message, deadline, &c->request, &c->answer);
}

/* Takes a request that was sent back, whether it was answered or not. */
static void claim_take_back(struct session *s, struct claiming *c)
{
	const struct wire_claim *m = &c->message.fixed;

	session_forget(s, &c->request);
	send_unclaim(s, m->again ? m->again : m->header.serial, "");
}

/* Waits for the answer; another daemon that takes over is asked again, with the serial of the first
 * time. Returns 0, SESSION_E_* or a negative errno. */
static int claim_hear(struct session *s, struct claiming *c, int64_t deadline)
{
	struct wire_claim *m = &c->message.fixed;
	uint32_t first = m->header.serial;
	int r;

	for (;;) {
		r = session_await(s, &c->request, deadline);
		if (r != SESSION_E_ADOPTED)
			return r;
		m->again = first;
		r = session_ask(s, m, deadline, &c->request, &c->answer);
		if (r)
			return r;
	}
}

/* Reads the answer. Returns 0, -EEXIST, or another negative errno. */
static int claim_outcome(struct claiming *c)
{
	struct wire_claimed claimed;
	int r = answer_expect(&c->answer, WIRE_CLAIMED, "claiming a name");

	if (r)
		return r;
	memcpy(&claimed, c->answer.bytes, sizeof(claimed));
	if (claimed.what == WIRE_CLAIM_YOURS)
		return 0;
	if (claimed.what == WIRE_CLAIM_PUBLISHED)
		return tl_fail(-EEXIST, "'%s' is published already: get it", c->message.name);
	return tl_fail(-EBUSY, "somebody else has claimed '%s': wait for it, with a timeout",
		       c->message.name);
}

/* Claims on this session. @deadline limits the wait or, without @wait, the time for the answer. */
static int claim_on(struct session *s, const char *name, bool wait, int64_t deadline)
{
	struct claiming c;
	int r = claim_ask(s, &c, name, wait, deadline);

	if (r)
		return r;
	c.request.fresh = true;
	r = claim_hear(s, &c, deadline);
	if (r == -ETIMEDOUT) {
		claim_take_back(s, &c);
		if (wait)
			tl_fail(r,
				"'%s' could not be claimed in time: somebody else has claimed it "
				"and has not published it, or the daemon does not answer",
				name);
	}
	return r ? r : claim_outcome(&c);
}

/* One attempt. A claim ends with its connection, so it may be made again on the next one. */
static int claim_attempt(struct call *c, const struct use *use, void *context)
{
	const char *const *name = context;
	int r;

	users_call(&use->session->users, 1);
	r = claim_on(use->session, *name, false, call_deadline(c));
	if (r == -EBUSY && c->timeout_ns)
		r = claim_on(use->session, *name, true, c->deadline);
	users_call(&use->session->users, -1);
	return call_done(c, use, r);
}

int claim_take(struct tl_client *client, const char *name, int64_t timeout_ns)
{
	struct call c = call_begin(client, timeout_ns);

	return call_run(&c, claim_attempt, &name);
}

/* ---- Many ---- */

struct claims {
	const char *const *names;
	size_t n;
	int *outcomes;
};

/* Claims up to AT_ONCE names: sends all requests before it waits for the first answer. */
static int claims_on(struct session *s, const char *const *names, unsigned n, int *outcomes,
		     int64_t deadline)
{
	struct claiming *each = calloc(n, sizeof(*each));
	unsigned asked = 0, heard = 0;
	int r = 0;

	if (!each)
		return tl_fail(-ENOMEM, "no memory for claims on %u names", n);
	while (!r && asked < n) {
		r = claim_ask(s, &each[asked], names[asked], false, deadline);
		asked += !r;
	}
	while (!r && heard < n) {
		r = claim_hear(s, &each[heard], deadline);
		if (!r)
			outcomes[heard] = claim_outcome(&each[heard]);
		heard += !r;
	}
	for (unsigned i = heard; i < asked; i++)
		claim_take_back(s, &each[i]);
	free(each);
	return r;
}

static int claims_attempt(struct call *c, const struct use *use, void *context)
{
	const struct claims *all = context;
	size_t done = 0, n;
	int r = 0;

	users_call(&use->session->users, 1);
	for (size_t i = 0; i < all->n; i++)
		all->outcomes[i] = -EBUSY;
	for (; !r && done < all->n; done += n) {
		n = all->n - done < AT_ONCE ? all->n - done : AT_ONCE;
		r = claims_on(use->session, all->names + done, (unsigned)n, all->outcomes + done,
			      call_deadline(c));
	}
	for (size_t i = 0; r && i < all->n; i++)
		if (!all->outcomes[i])
			send_unclaim(use->session, 0, all->names[i]);
	users_call(&use->session->users, -1);
	return call_done(c, use, r);
}

int claim_many(struct tl_client *client, const char *const *names, size_t n, int *outcomes)
{
	struct call c = call_begin_request(client);
	struct claims all = { names, n, outcomes };
	int r = n ? call_run(&c, claims_attempt, &all) : 0;

	for (size_t i = 0; r && i < n; i++)
		outcomes[i] = r;
	return r;
}

/* ---- Giving up ---- */

static int unclaim_attempt(struct call *c, const struct use *use, void *context)
{
	const char *const *name = context;

	if (!session_served(use->session))
		return LEASE_E_UNSERVED;
	send_unclaim(use->session, 0, *name);
	return call_done(c, use, 0);
}

int claim_give_up(struct tl_client *client, const char *name)
{
	struct call c = call_begin(client, 0);

	return call_run(&c, unclaim_attempt, &name);
}
