/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over one socket. A received descriptor is ours from the moment recvmsg() returns. So all
 * of them are collected before anything is checked, and all are closed unless the message is good.
 * There is space for more than the one that a message may carry, so that a second one is seen. The
 * kernel drops descriptors that do not fit even then and sets MSG_CTRUNC, as it does when this
 * process may open no more files.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/conn.h"
#include "util/fd.h"

enum { DEBUG_LINE = 3072 };

static const char *debug_who; /* NULL: nothing is printed */

void conn_debug_init(const char *who)
{
	const char *topics = getenv("TENSORLEASE_DEBUG");

	debug_who = topics && strstr(topics, "wire") ? who : NULL;
}

static void debug_message(const char *arrow, const void *message, bool with_fd)
{
	char line[DEBUG_LINE];

	wire_print(message, with_fd, line, sizeof(line));
	fprintf(stderr, "%s %s %s\n", debug_who, arrow, line);
}

static void collect_fds(struct conn_fds *out, struct msghdr *msg)
{
	out->n = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n && out->n < CONN_FDS_MAX; i++)
			memcpy(&out->fds[out->n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	}
}

static void close_fds(struct conn_fds *fds)
{
	while (fds->n > 0)
		close(fds->fds[--fds->n]);
}

static int judge(struct conn_message *m, size_t length, int msg_flags, unsigned nfds,
		 enum wire_side side)
{
	if (length == 0)
		return -ECONNRESET; /* the end; an empty datagram counts as one */
	m->fd_lost = msg_flags & MSG_CTRUNC;
	if (m->fd_lost && (side != WIRE_TO_CLIENT || nfds)) {
		snprintf(m->why, sizeof(m->why),
			 "descriptors were lost: too many came, or this process may open no more");
		return -EBADMSG;
	}
	if (msg_flags & MSG_TRUNC) {
		snprintf(m->why, sizeof(m->why), "it is longer than %d bytes", WIRE_MAX);
		return -EBADMSG;
	}
	return wire_check(m->bytes, length, m->fd_lost ? 1 : nfds, side, m->why);
}

/*
 * When one end closes with messages unread, the other's next recvmsg() fails once with ECONNRESET,
 * before the messages that were sent earlier. The last of these, an ERROR, comes with the next
 * call.
 */
static ssize_t receive(int socket, struct msghdr *msg, int flags)
{
	bool again = true;
	ssize_t n;

	for (;;) {
		n = recvmsg(socket, msg, flags | MSG_CMSG_CLOEXEC);
		if (n >= 0)
			return n;
		if (errno == ECONNRESET && again)
			again = false;
		else if (errno != EINTR)
			return -errno;
	}
}

int conn_receive_all(int socket, enum wire_side side, struct conn_message *m, int flags,
		     struct conn_fds *refused)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(CONN_FDS_MAX * sizeof(int))];
	struct iovec iov = { .iov_base = m->bytes, .iov_len = sizeof(m->bytes) };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;
	int r;

	m->fd = -1;
	m->why[0] = '\0';
	refused->n = 0;
	n = receive(socket, &msg, flags);
	if (n < 0)
		return (int)n;

	collect_fds(refused, &msg);
	r = judge(m, (size_t)n, msg.msg_flags, refused->n, side);
	if (r) {
		if (debug_who)
			fprintf(stderr, "%s <- %s\n", debug_who,
				m->why[0] ? m->why : "end of the connection");
		return r;
	}
	if (refused->n)
		m->fd = refused->fds[--refused->n]; /* a good message has one at most */
	if (debug_who)
		debug_message("<-", m->bytes, m->fd >= 0);
	return 0;
}

int conn_receive(int socket, enum wire_side side, struct conn_message *m, int flags)
{
	struct conn_fds refused;
	int r = conn_receive_all(socket, side, m, flags, &refused);

	close_fds(&refused);
	if (!r && m->fd >= 0) {
		m->fd = fd_raise(m->fd);
		m->fd_lost = m->fd < 0;
	}
	return r;
}

int conn_send(int socket, const void *message, int fd_peek, int flags)
{
	const struct wire_header *h = message;
	alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)message, .iov_len = h->length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (fd_peek >= 0) {
		struct cmsghdr *c = (struct cmsghdr *)control;

		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd_peek, sizeof(int));
	}
	do {
		n = sendmsg(socket, &msg, flags | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (debug_who)
		debug_message("->", message, fd_peek >= 0);
	return 0;
}

void conn_consume(int socket)
{
	char byte;

	while (recv(socket, &byte, 1, MSG_DONTWAIT) < 0 && errno == EINTR) {}
}

/* True if a message has come that was not received. An error counts as one, which is safe. */
static bool is_unread(int fd_peek)
{
	int bytes;

	return ioctl(fd_peek, SIOCINQ, &bytes) || bytes > 0;
}

/* SIOCINQ does not count empty messages, which may have descriptors nevertheless. With SO_PASSCRED
 * every message brings credentials, for which there is no space here; the end brings none. */
bool conn_end(int fd_peek)
{
	struct msghdr msg = { .msg_iovlen = 0 };
	int one = 1;

	shutdown(fd_peek, SHUT_RD); /* no more messages come from now on */
	if (is_unread(fd_peek))
		return true;
	setsockopt(fd_peek, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one));
	return recvmsg(fd_peek, &msg, MSG_PEEK | MSG_DONTWAIT) >= 0 && msg.msg_flags & MSG_CTRUNC;
}
