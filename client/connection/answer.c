/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <tensorlease/tensorlease.h>

#include "client/connection/answer.h"
#include "client/error.h"
#include "util/clock.h"
#include "util/fd.h"

int pause_until(int64_t deadline)
{
	if (deadline_passed(deadline))
		return -ETIMEDOUT;
	poll(NULL, 0, 1);
	return 0;
}

int socket_wait(int socket, short events, int64_t deadline)
{
	struct pollfd p = { .fd = socket, .events = events };

	while (socket >= 0) {
		int n = poll(&p, 1, deadline_left_ms(deadline));

		if (n > 0)
			return 0; /* also for errors: the next call on the socket reports them */
		if (n == 0 && deadline_passed(deadline))
			return -ETIMEDOUT;
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return -errno;
	}
	return -EBADF;
}

int answer_errno(uint32_t code)
{
	switch (code) {
	case WIRE_E_INVALID:
		return -EINVAL;
	case WIRE_E_PROTOCOL:
		return -EPROTO;
	case WIRE_E_VERSION:
		return -EPROTONOSUPPORT;
	case WIRE_E_NOT_FOUND:
		return -ENOENT;
	case WIRE_E_NO_SPACE:
	case WIRE_E_LIMIT:
		return -ENOSPC;
	case WIRE_E_QUOTA:
		return -EDQUOT;
	case WIRE_E_DENIED:
		return -EACCES;
	case WIRE_E_STALE:
	case WIRE_E_OLD:
		return -ESTALE;
	case WIRE_E_CLIENTS:
		return -EUSERS;
	case WIRE_E_NO_RESOURCES:
		return -ENOMEM;
	case WIRE_E_KIND:
		return -EMEDIUMTYPE;
	case WIRE_E_KICKED:
		return -ECONNABORTED;
	default:
		return -EPROTO;
	}
}

/* Passes on only causes that a daemon can have: the library finds the others itself. */
static uint32_t answer_cause(uint16_t cause)
{
	switch (cause) {
	case WIRE_CAUSE_NAMESPACE:
		return TL_CAUSE_NAMESPACE;
	case WIRE_CAUSE_NOBODY:
		return TL_CAUSE_NOBODY;
	case WIRE_CAUSE_TENSORS:
		return TL_CAUSE_TENSORS;
	case WIRE_CAUSE_TOO_LARGE:
		return TL_CAUSE_TOO_LARGE;
	default:
		return TL_CAUSE_NONE;
	}
}

int answer_expect(struct conn_message *answer, unsigned expected, const char *what)
{
	const struct wire_error_reply *e = (const void *)answer->bytes;
	int r;

	if (answer->header.type == expected)
		return 0;
	answer->fd = fd_close(answer->fd);
	if (answer->header.type == WIRE_ERROR) {
		r = tl_fail(answer_errno(e->code), "%s: %.*s", what, (int)e->text_len,
			    (const char *)wire_tail(e, sizeof(*e)));
		tl_fail_because(answer_cause(e->cause), 0);
		return r;
	}
	return tl_fail(-EPROTO, "%s: the daemon answered %s where %s belongs", what,
		       wire_type_name(answer->header.type), wire_type_name(expected));
}

int answer_missing(int r, const char *address, int64_t waited_ns)
{
	switch (r) {
	case -EPROTO:
		return tl_fail(r, "the daemon at %s broke the protocol", address);
	case -ETIMEDOUT:
		return tl_fail(
			r,
			"the daemon at %s did not answer in time (%.3g s): see that it runs, "
			"or connect with a longer timeout",
			address, (double)waited_ns / (double)NS_PER_SEC);
	case -EMFILE:
		return tl_fail(r,
			       "a descriptor from the daemon at %s is lost, since this process may "
			       "open no more (ulimit -n)",
			       address);
	default:
		return tl_fail(r, "waiting for the daemon at %s: %m", address);
	}
}

bool answer_refuses_draft(const struct conn_message *answer)
{
	const struct wire_error_reply *e = (const void *)answer->bytes;

	return answer->header.type == WIRE_ERROR && e->code != WIRE_E_STALE;
}
