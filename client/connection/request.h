/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a session: how they are sent, and how answers find their waiters (request.c). */
#pragma once

#include "client/connection/socket.h"

/*
 * Called when another daemon has taken the connection over, and the former one may have done the
 * request. Returns true if it has, with *@answer filled. Otherwise the request, which may be
 * changed, is sent again.
 */
typedef bool session_done(struct session *s, void *message, struct conn_message *answer,
			  void *context);

/* Sends a request and waits for an answer of any type. Returns 0, SESSION_E_UNSENT or _ENDED, or a
 * negative errno. @done may be NULL if the request can be made twice. */
int session_call_unless(struct session *s, void *message, int fd_peek, int64_t deadline,
			struct conn_message *answer, session_done *done, void *context);
static inline int session_call_fd(struct session *s, void *message, int fd_peek, int64_t deadline,
				  struct conn_message *answer)
{
	return session_call_unless(s, message, fd_peek, deadline, answer, NULL, NULL);
}
static inline int session_call(struct session *s, void *message, int64_t deadline,
			       struct conn_message *answer)
{
	return session_call_fd(s, message, -1, deadline, answer);
}

/* Returns a serial for a message, which no pending request has. */
uint32_t session_serial(struct session *s);

/* Expects an answer with @serial, without sending anything: the request is sent by the caller, or
 * is part of another message. It is pending until session_await() or session_forget(). */
void session_expect(struct session *s, uint32_t serial, struct request *req,
		    struct conn_message *answer);

/* The halves of session_call_unless(). The request is pending from the first to the end of the
 * second, or to session_forget(). */
int session_ask_fd(struct session *s, void *message, int fd_peek, int64_t deadline,
		   struct request *req, struct conn_message *answer);
static inline int session_ask(struct session *s, void *message, int64_t deadline,
			      struct request *req, struct conn_message *answer)
{
	return session_ask_fd(s, message, -1, deadline, req, answer);
}
/* session_ask_fd(), if @life has not ended; SESSION_E_ADOPTED if it has. */
int session_ask_in_life(struct session *s, void *message, uint32_t life, int64_t deadline,
			struct request *req, struct conn_message *answer);
/* True if the answer has come or the connection ended: session_await() is optional then. */
bool session_answered(struct session *s, struct request *req);
int session_await(struct session *s, struct request *req, int64_t deadline);
void session_forget(struct session *s, struct request *req);
