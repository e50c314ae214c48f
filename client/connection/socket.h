/* SPDX-License-Identifier: Apache-2.0 */
/* The socket of a session: what is sent and read, messages that wait for space, and its end. */
#pragma once

#include "client/connection/answer.h"
#include "client/connection/session.h"

/* How often callers that sleep, or send nothing, look whether the daemon is still there. */
#define DAEMON_PROBE_NS (1 * NS_PER_SEC)

void session_ended(struct session *s);
bool session_probe(struct session *s); /* false if the connection has ended */
/* session_probe() for calls that may come very often: it looks once per clock tick (about 4 ms). */
bool session_alive(struct session *s);
/* For a session whose connection has ended: finds out whether it was ended on purpose. Then no new
 * connection may be made. Returns 0, or -ECONNABORTED with the daemon's text. */
int session_kicked(struct session *s);

/* Sends a message without an answer, and waits until @deadline for space. Returns 0,
 * SESSION_E_UNSENT, or a negative errno. */
int session_send_fd(struct session *s, const void *message, int fd_peek, int64_t deadline);
static inline int session_send(struct session *s, const void *message, int64_t deadline)
{
	return session_send_fd(s, message, -1, deadline);
}

/* Sends a message without waiting. If it does not fit into the socket it is sent later, before any
 * other message: socket.c. */
void session_post(struct session *s, const void *message);
/* session_post() for a handler of messages, which holds the receive mutex. */
void session_post_locked(struct session *s, const void *message);
/* Sends the messages of the outbox. Returns 0, or why the first of those still left cannot be
 * sent. */
int outbox_send_locked(struct session *s);
/* To be called when no call uses the session any more: ends the outbox's thread. */
void outbox_end(struct session *s);

/* Tells the daemon that a draft is given up, by session_post(). */
void session_abort(struct session *s, uint64_t ref);
void session_abort_locked(struct session *s, uint64_t ref);

/* To be called once for each DRAFT that answered a request, when the ledger counts its draft. */
void session_granted(struct session *s);

/* Reads the messages that have arrived, without waiting. */
void session_drain(struct session *s);
void session_drain_expected(struct session *s); /* if an answer is expected */

/* The most messages read at once where no thread waits for one: a daemon may send without end. */
enum { AT_ONCE_MAX = 4096 };

/* For request.c. Reads one message, without waiting. */
int session_receive_locked(struct session *s);
/* For request.c. Sends the messages of the outbox. */
int session_send_due_locked(struct session *s);
