/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>

#include "client/error.h"
#include "client/read/late.h"
#include "util/clock.h"

void late_daemon(const struct call *c, const struct session *s, char text[LATE_DAEMON])
{
	uint64_t age = (uint64_t)now_real_ns() - load_once(&s->catalog.header->started_ns);
	int64_t began = c->deadline - c->timeout_ns; /* a wait may end later than it should */

	*text = '\0';
	if (c->timeout_ns > 0 && age < (uint64_t)(now_mono_ns() - began))
		snprintf(text, LATE_DAEMON, "; the daemon was started %.1f s ago",
			 (double)age / (double)NS_PER_SEC);
}

int late_fail(const struct call *c, const struct session *s, const char *name, uint64_t newer_than,
	      uint64_t version)
{
	long long ms = c->timeout_ns / NS_PER_MS;
	char started[LATE_DAEMON];

	late_daemon(c, s, started);
	if (!newer_than)
		return tl_fail(-ETIMEDOUT, "no tensor called '%s' came within %lld ms" LATE_AT "%s",
			       name, ms, LATE_AT_ARGS(s->address), started);
	if (!version)
		return tl_fail(
			-ETIMEDOUT,
			"no version of '%s' above %llu came within %lld ms: no tensor has that "
			"name" LATE_AT "%s",
			name, (unsigned long long)newer_than, ms, LATE_AT_ARGS(s->address),
			started);
	return tl_fail(-ETIMEDOUT,
		       "no version of '%s' above %llu came within %lld ms: it has version %llu%s",
		       name, (unsigned long long)newer_than, ms, (unsigned long long)version,
		       started);
}
