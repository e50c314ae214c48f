/* SPDX-License-Identifier: Apache-2.0 */
/* A socket that makes whoever closes it last wait, since its peer does not read what was sent. */
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/harness/harness.h"

struct slow_fd {
	int fd;
	int peer; /* closing it ends the wait */
};

static inline struct slow_fd slow_fd_make(int seconds)
{
	struct linger linger = { .l_onoff = 1, .l_linger = seconds };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static const char bytes[64 * KIB];
	socklen_t length = sizeof(a);
	struct slow_fd slow;

	must(listener >= 0);
	must_be(bind(listener, (struct sockaddr *)&a, length), 0);
	must_be(listen(listener, 1), 0);
	must_be(getsockname(listener, (struct sockaddr *)&a, &length), 0);
	slow.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(slow.fd >= 0);
	must_be(connect(slow.fd, (struct sockaddr *)&a, length), 0);
	slow.peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	must(slow.peer >= 0);
	close(listener);
	while (send(slow.fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	must_be(setsockopt(slow.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return slow;
}

/* From now on it is closed at once. */
static inline void slow_fd_hurry(const struct slow_fd *slow)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(slow->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}
