/* SPDX-License-Identifier: Apache-2.0 */
/* What a service manager hears of its service: sd_notify(3). */
#pragma once

#include <sys/socket.h>

#include "tests/harness/harness.h"

/* Receives what was said. Returns the descriptor that came with it, or -1. */
static inline int notify_receive(int fd, char *text, size_t size)
{
	struct iovec iov = { .iov_base = text, .iov_len = size - 1 };
	union {
		struct cmsghdr header;
		char bytes[256];
	} control;
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	int got = -1;

	must(n > 0);
	text[n] = '\0';
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(&got, CMSG_DATA(c), sizeof(got));
	return got;
}
