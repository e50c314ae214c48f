/* SPDX-License-Identifier: Apache-2.0 */
/* One message in, one message out, with its descriptor. Used by both ends; keeps no state. */
#pragma once

#include "proto/wire.h"

struct conn_message {
	union {
		struct wire_header header;
		unsigned char bytes[WIRE_MAX];
	};
	int fd;		 /* came with it, ours to close, or -1; take_fd() it to keep it */
	const char *why; /* after -EBADMSG: what is wrong with it */
};

/*
 * Receives one message for @side into @m and checks it (wire_check()). All descriptors that came
 * are owned before anything is judged; with any error none is left open and m->fd is -1. 0; -EAGAIN
 * with @flags MSG_DONTWAIT; -ECONNRESET at the end of the connection; -EBADMSG for a message that
 * must end it; or what recvmsg() said.
 */
int conn_receive(int socket, enum wire_side side, struct conn_message *m, int flags);

/*
 * Sends one message, whose header says its length, with @fd_peek unless that is -1. Never raises
 * SIGPIPE; EINTR is retried. 0, or what sendmsg() said (-EAGAIN with MSG_DONTWAIT in @flags,
 * -EPIPE, -ECONNRESET).
 */
int conn_send(int socket, const void *message, int fd_peek, int flags);

/* Says where wire_print()ed lines go if TENSORLEASE_DEBUG contains "wire": stderr, each after @who.
 */
void conn_debug_init(const char *who);
