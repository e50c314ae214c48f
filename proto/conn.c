/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over one socket. A received descriptor is ours from the moment recvmsg() returns, so all
 * of them are collected before anything is judged, and all are closed unless the message is good.
 * There is room for more than the one that a message may carry, so that a second one is seen. The
 * kernel drops what does not fit even then and sets MSG_CTRUNC, as it does when this process may
 * open no more files.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/conn.h"

enum { FDS_ROOM = 4, DEBUG_LINE = 3072 };

struct received_fds {
	unsigned n;
	int fds[FDS_ROOM];
};

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

static void collect_fds(struct received_fds *out, struct msghdr *msg)
{
	out->n = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n && out->n < FDS_ROOM; i++)
			memcpy(&out->fds[out->n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	}
}

static void close_fds(struct received_fds *fds)
{
	while (fds->n > 0)
		close(fds->fds[--fds->n]);
}

static int judge(struct conn_message *m, size_t length, int msg_flags, unsigned nfds,
		 enum wire_side side)
{
	if (length == 0)
		return -ECONNRESET; /* the end; an empty datagram counts as one */
	if (msg_flags & MSG_CTRUNC) {
		snprintf(m->why, sizeof(m->why),
			 "descriptors were lost: too many came, or this process may open no more");
		return -EBADMSG;
	}
	if (msg_flags & MSG_TRUNC) {
		snprintf(m->why, sizeof(m->why), "it is longer than %d bytes", WIRE_MAX);
		return -EBADMSG;
	}
	return wire_check(m->bytes, length, nfds, side, m->why);
}

/*
 * When one end closes with messages unread, the other's next recvmsg() fails once with ECONNRESET,
 * ahead of what was sent before the close. The last words, an ERROR, come with the call after that.
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

int conn_receive(int socket, enum wire_side side, struct conn_message *m, int flags)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_ROOM * sizeof(int))];
	struct iovec iov = { .iov_base = m->bytes, .iov_len = sizeof(m->bytes) };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct received_fds fds;
	ssize_t n;
	int r;

	m->fd = -1;
	m->why[0] = '\0';
	n = receive(socket, &msg, flags);
	if (n < 0)
		return (int)n;

	collect_fds(&fds, &msg);
	r = judge(m, (size_t)n, msg.msg_flags, fds.n, side);
	if (r) {
		close_fds(&fds);
		if (debug_who)
			fprintf(stderr, "%s <- %s\n", debug_who,
				m->why[0] ? m->why : "end of the connection");
		return r;
	}
	if (fds.n)
		m->fd = fds.fds[0];
	if (debug_who)
		debug_message("<-", m->bytes, fds.n > 0);
	return 0;
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
