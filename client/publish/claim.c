/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims; see publish.h. A claimant has a request pending for as long as it waits. If the wait ends
 * before the answer comes, UNCLAIM takes the request back, or the claim if it was granted
 * meanwhile.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/publish.h"
#include "util/clock.h"

enum { NAMES_MAX = WIRE_MAX - sizeof(struct wire_claim) }; /* bytes of names in a message */
static_assert(sizeof(struct wire_unclaim) <= sizeof(struct wire_claim), "NAMES_MAX");

/* Writes up to @n of the names, with a NUL between them. Returns the bytes; *@count: the names. */
static uint16_t names_write(char to[NAMES_MAX], const char *const *names, size_t n, unsigned *count)
{
	size_t at = 0, len;

	for (*count = 0; *count < n; at += len) {
		len = strlen(names[*count]) + 1;
		if (at + len > NAMES_MAX)
			break;
		memcpy(to + at, names[(*count)++], len);
	}
	return (uint16_t)(at - 1);
}

struct unclaiming {
	struct wire_unclaim fixed;
	char names[NAMES_MAX];
};

/* Gives up the claims of a CLAIM by its serial. */
static void unclaim_request(struct session *s, uint32_t claim)
{
	struct wire_unclaim m = { .header = { .type = WIRE_UNCLAIM, .length = sizeof(m) },
				  .claim = claim };

	session_post(s, &m);
}

static void unclaim_names(struct session *s, const char *const *names, size_t n)
{
	struct unclaiming m;
	unsigned count;

	for (; n; names += count, n -= count) {
		m.fixed = (struct wire_unclaim){ .header = { .type = WIRE_UNCLAIM } };
		m.fixed.names_len = names_write(m.names, names, n, &count);
		m.fixed.header.length = (uint32_t)sizeof(m.fixed) + m.fixed.names_len;
		session_post(s, &m);
	}
}

/* A CLAIM, from when it is sent until it is answered. */
struct claiming {
	struct {
		struct wire_claim fixed;
		char names[NAMES_MAX];
	} message;
	unsigned count; /* names in it */
	struct request request;
	struct conn_message answer;
};

/* Sends CLAIM for as many of the names as go into one message. Returns 0, SESSION_E_* or a negative
 * errno. */
static int claim_ask(struct session *s, struct claiming *c, const char *const *names, size_t n,
		     bool wait, int64_t deadline)
{
	struct wire_claim *m = &c->message.fixed;

	*m = (struct wire_claim){ .header = { .type = WIRE_CLAIM },
				  .flags = wait ? WIRE_CLAIM_WAIT : 0 };
	m->names_len = names_write(c->message.names, names,
				   n < WIRE_CLAIMS_MAX ? n : WIRE_CLAIMS_MAX, &c->count);
	m->header.length = (uint32_t)sizeof(*m) + m->names_len;
	return session_ask(s, &c->message, deadline, &c->request, &c->answer);
}

/* Takes a request that was sent back, whether it was answered or not. */
static void claim_take_back(struct session *s, struct claiming *c)
{
	const struct wire_claim *m = &c->message.fixed;

	session_forget(s, &c->request);
	unclaim_request(s, m->again ? m->again : m->header.serial);
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

static int claim_outcome(const struct wire_claimed *claimed, unsigned i, const char *name)
{
	if (claimed->yours >> i & 1)
		return 0;
	if (claimed->published >> i & 1)
		return tl_fail(-EEXIST, "'%s' is published already: get it", name);
	return tl_fail(-EBUSY, "somebody else has claimed '%s': wait for it, with a timeout", name);
}

/* Reads the answer. Returns how many of the names it tells of, at least one. */
static unsigned claim_outcomes(struct claiming *c, const char *const *names, int *outcomes)
{
	struct wire_claimed claimed;

	outcomes[0] = answer_expect(&c->answer, WIRE_CLAIMED, "claiming a name");
	if (outcomes[0])
		return 1;
	memcpy(&claimed, c->answer.bytes, sizeof(claimed));
	if (claimed.count > c->count) {
		outcomes[0] = tl_fail(-EPROTO, "the daemon answers a claim on %u names for %u",
				      c->count, claimed.count);
		return 1;
	}
	for (unsigned i = 0; i < claimed.count; i++)
		outcomes[i] = claim_outcome(&claimed, i, names[i]);
	return claimed.count;
}

/* Claims on this session. @deadline limits the wait or, without @wait, the time for the answer. */
static int claim_on(struct session *s, const char *name, bool wait, int64_t deadline)
{
	struct claiming c;
	int outcome, r = claim_ask(s, &c, &name, 1, wait, deadline);

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
	if (!r)
		claim_outcomes(&c, &name, &outcome);
	return r ? r : outcome;
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

/* Claims at least the first of the names. *@told: how many have outcomes. */
static int claims_on(struct session *s, const char *const *names, size_t n, int *outcomes,
		     unsigned *told, int64_t deadline)
{
	struct claiming c;
	int r = claim_ask(s, &c, names, n, false, deadline);

	if (r)
		return r;
	r = claim_hear(s, &c, deadline);
	if (r)
		claim_take_back(s, &c);
	else
		*told = claim_outcomes(&c, names, outcomes);
	return r;
}

static int claims_attempt(struct call *c, const struct use *use, void *context)
{
	const struct claims *all = context;
	unsigned told = 0;
	int r = 0;

	users_call(&use->session->users, 1);
	for (size_t i = 0; i < all->n; i++)
		all->outcomes[i] = -EBUSY;
	for (size_t i = 0; !r && i < all->n; i += told)
		r = claims_on(use->session, all->names + i, all->n - i, all->outcomes + i, &told,
			      call_deadline(c));
	for (size_t i = 0; r && i < all->n; i++)
		if (!all->outcomes[i])
			unclaim_names(use->session, &all->names[i], 1);
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
	const struct claims *all = context;

	if (!session_served(use->session))
		return LEASE_E_UNSERVED;
	unclaim_names(use->session, all->names, all->n);
	return call_done(c, use, 0);
}

int claims_give_up(struct tl_client *client, const char *const *names, size_t n)
{
	struct call c = call_begin(client, 0);
	struct claims all = { names, n, NULL };

	return n ? call_run(&c, unclaim_attempt, &all) : 0;
}
