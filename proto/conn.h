/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives one message with its descriptor. Both ends use it; it keeps no state. */
#pragma once

#include <stdalign.h>

#include "proto/wire.h"

struct conn_message {
	union {
		struct wire_header header;
		alignas(8) unsigned char bytes[WIRE_MAX]; /* every fixed part can be read in place
							   */
	};
	int fd;			 /* came with it, ours to close, or -1; take_fd() it to keep it */
	char why[WIRE_WHY_TEXT]; /* after -EBADMSG: what is wrong with it; else empty */
};

/*
 * Receives one message for @side into @m and checks it with wire_check(). After any error no
 * descriptor that came is left open, and m->fd is -1. 0; -EAGAIN with MSG_DONTWAIT in @flags;
 * -ECONNRESET at the end of the connection; -EBADMSG for a message that must end it; or what
 * recvmsg() said.
 */
int conn_receive(int socket, enum wire_side side, struct conn_message *m, int flags);

/*
 * Sends one message, whose header says its length, with @fd_peek unless that is -1. Never raises
 * SIGPIPE; EINTR is retried. 0, or what sendmsg() said (-EAGAIN with MSG_DONTWAIT in @flags,
 * -EPIPE, -ECONNRESET).
 */
int conn_send(int socket, const void *message, int fd_peek, int flags);

/*
 * From now on each message is printed on standard error after @who, if TENSORLEASE_DEBUG contains
 * "wire".
 */
void conn_debug_init(const char *who);
