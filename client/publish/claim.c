/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims; see publish.h. A claimant has a request pending for as long as it waits. If the wait ends
 * before the answer comes, UNCLAIM takes the request back, or the claim if it was granted
 * meanwhile.
 */
#include <errno.h>
#include <stdalign.h>
#include <string.h>

#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/publish.h"
#include "util/clock.h"

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

/* Marks the request as repeated, for another daemon. Returns false: it has to be sent again. */
static bool not_done(struct session *s, void *message, struct conn_message *answer, void *context)
{
	struct wire_claim *m = message;

	(void)s;
	(void)answer;
	(void)context;
	if (!m->again)
		m->again = m->header.serial;
	return false;
}

/* Reads the answer. Returns 0, -EEXIST, or another negative errno. */
static int claim_outcome(struct conn_message *answer, const char *name)
{
	struct wire_claimed claimed;
	int r = answer_expect(answer, WIRE_CLAIMED, "claiming a name");

	if (r)
		return r;
	memcpy(&claimed, answer->bytes, sizeof(claimed));
	if (claimed.what == WIRE_CLAIM_YOURS)
		return 0;
	if (claimed.what == WIRE_CLAIM_PUBLISHED)
		return tl_fail(-EEXIST, "'%s' is published already: get it", name);
	return tl_fail(-EBUSY, "somebody else has claimed '%s': wait for it, with a timeout", name);
}

/* Claims on this session. @deadline limits the wait or, without @wait, the time for the answer. */
static int claim_on(struct session *s, const char *name, bool wait, int64_t deadline)
{
	struct {
		struct wire_claim fixed;
		char name[TL_NAME_MAX + 1];
	} m = { .fixed = { .flags = wait ? WIRE_CLAIM_WAIT : 0 } };
	size_t len = strlen(name);
	struct conn_message answer;
	int r;

	m.fixed.header = (struct wire_header){ .type = WIRE_CLAIM,
					       .length = (uint32_t)(sizeof(m.fixed) + len) };
	m.fixed.name_len = (uint16_t)len;
	memcpy(m.name, name, len + 1);
	r = session_call_unless(s, &m, -1, deadline, &answer, not_done, NULL);
	if (!m.fixed.again)
		m.fixed.again = m.fixed.header.serial;
	if (r == -ETIMEDOUT && m.fixed.again) { /* the request was sent */
		send_unclaim(s, m.fixed.again, "");
		if (wait)
			tl_fail(r,
				"'%s' could not be claimed in time: somebody else has claimed it "
				"and has not published it, or the daemon does not answer",
				name);
	}
	return r ? r : claim_outcome(&answer, name);
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
