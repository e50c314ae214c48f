/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives one message with its descriptor. Both ends use it; it has no state. */
#pragma once

#include <stdalign.h>
#include <stdbool.h>

#include "proto/wire.h"

struct conn_message {
	union {
		struct wire_header header;
		alignas(8) unsigned char bytes[WIRE_MAX]; /* for reading structs in place */
	};
	int fd;	      /* received with the message, ours to close, or -1; take_fd() it to keep it */
	bool fd_lost; /* one came, or several, but this process may have no more of them */
	char why[WIRE_WHY_TEXT]; /* after -EBADMSG: the error in the message; else empty */
};

/* The most descriptors that the kernel passes with one message. */
enum { CONN_FDS_MAX = 253 };

struct conn_fds {
	unsigned n;
	int fds[CONN_FDS_MAX];
};

/*
 * Receives one message for @side into @m and checks it with wire_check(). After any error all
 * received descriptors are closed, and m->fd is -1. Returns 0; -EAGAIN with MSG_DONTWAIT in @flags;
 * -ECONNRESET at the end of the connection; -EBADMSG for a message that must end it; or the error
 * of recvmsg().
 */
int conn_receive(int socket, enum wire_side side, struct conn_message *m, int flags);

/* The same, but leaves the descriptors of a refused message in @refused, for the caller to close:
 * that may take as long as their sender likes. */
int conn_receive_all(int socket, enum wire_side side, struct conn_message *m, int flags,
		     struct conn_fds *refused);

/*
 * Sends one message, which has its length in its header, with @fd_peek unless that is -1. Never
 * raises SIGPIPE; EINTR is retried. Returns 0, or the error of sendmsg() (-EAGAIN with MSG_DONTWAIT
 * in @flags, -EPIPE, -ECONNRESET).
 */
int conn_send(int socket, const void *message, int fd_peek, int flags);

/* Removes the first message, which was received with MSG_PEEK, from the socket. Its descriptors are
 * still open here, so that this does not wait. */
void conn_consume(int socket);

/*
 * To be called before the socket is closed: the other end can send nothing any more. True: messages
 * came that were not received. They may have descriptors, so that closing the socket may take as
 * long as their sender likes.
 */
bool conn_end(int fd_peek);

/* From now on, prints each message on standard error after @who, if TENSORLEASE_DEBUG contains
 * "wire". */
void conn_debug_init(const char *who);
