/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives one message with its descriptor. Both ends use it; it keeps no state. */
#pragma once

#include <stdalign.h>

#include "proto/wire.h"

struct conn_message {
	union {
		struct wire_header header;
		alignas(8) unsigned char bytes[WIRE_MAX]; /* for reading structs in place */
	};
	int fd;			 /* came with it, ours to close, or -1; take_fd() it to keep it */
	char why[WIRE_WHY_TEXT]; /* after -EBADMSG: what is wrong with it; else empty */
};

/* As many as the kernel lets come with one message. */
enum { CONN_FDS_MAX = 253 };

struct conn_fds {
	unsigned n;
	int fds[CONN_FDS_MAX];
};

/*
 * Receives one message for @side into @m and checks it with wire_check(). After any error no
 * descriptor that came is left open, and m->fd is -1. 0; -EAGAIN with MSG_DONTWAIT in @flags;
 * -ECONNRESET at the end of the connection; -EBADMSG for a message that must end it; or what
 * recvmsg() said.
 */
int conn_receive(int socket, enum wire_side side, struct conn_message *m, int flags);

/*
 * The same, but the descriptors of a message that is refused are the caller's, in @refused: to
 * close one may take as long as its sender likes.
 */
int conn_receive_all(int socket, enum wire_side side, struct conn_message *m, int flags,
		     struct conn_fds *refused);

/*
 * Sends one message, whose header says its length, with @fd_peek unless that is -1. Never raises
 * SIGPIPE; EINTR is retried. 0, or what sendmsg() said (-EAGAIN with MSG_DONTWAIT in @flags,
 * -EPIPE, -ECONNRESET).
 */
int conn_send(int socket, const void *message, int fd_peek, int flags);

/* The first message, which was received with MSG_PEEK, is not to come again. Descriptors that came
 * with it are open here still, so that this does not wait for anybody. */
void conn_consume(int socket);

/* Has a message come that was not received? An error counts as one, which is safe; -1 as none. */
bool conn_unread(int fd_peek);

/*
 * The socket is about to be closed: the other end can send nothing any more. True: messages came
 * that were not received. There may be descriptors in them, so that closing the socket may take as
 * long as their sender likes.
 */
bool conn_end(int fd_peek);

/*
 * From now on each message is printed on standard error after @who, if TENSORLEASE_DEBUG contains
 * "wire".
 */
void conn_debug_init(const char *who);
