/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the daemon's answers, and waits until a socket has one. */
#pragma once

#include <errno.h>
#include <stdint.h>

#include "client/error.h"
#include "proto/conn.h"

/* Returns the negative errno of a wire_error. */
int answer_errno(uint32_t code);

/* Returns 0 if the answer has type @expected. Otherwise closes its fd and returns a negative errno
 * with a text that starts with @what. */
int answer_expect(struct conn_message *answer, unsigned expected, const char *what);

/* Fails with @r, which says why no answer came within @waited_ns. */
int answer_missing(int r, const char *address, int64_t waited_ns);

/* Fails because the kernel has not taken a message by the deadline: @why is -ENOBUFS or
 * -ETOOMANYREFS. */
static inline int send_refused(int why, const char *address)
{
	if (why == -ENOBUFS)
		return tl_fail(-ETIMEDOUT,
			       "the kernel has no memory for a message to the daemon at %s",
			       address);
	return tl_fail(-EMFILE,
		       "this user has sent as many descriptors as it may (ulimit -n), and the "
		       "daemon at %s has not received them",
		       address);
}

/* Waits until @socket is ready for @events. Returns 0, or -ETIMEDOUT without a text. */
int socket_wait(int socket, short events, int64_t deadline);
/* Pauses before the next attempt, where nothing tells when one may succeed. Returns 0, or
 * -ETIMEDOUT. */
int pause_until(int64_t deadline);

/* True if the answer refuses a request and leaves its draft a draft. */
bool answer_refuses_draft(const struct conn_message *answer);
