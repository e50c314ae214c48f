/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a session: what is sent, and who gets the answer (request.c). */
#pragma once

#include "client/session/answer.h"
#include "client/session/session.h"

void session_lost(struct session *s);
bool session_probe(struct session *s); /* false if the connection has ended */
/* The same for calls that may come very often: it looks once in a tick of the clock, 4 ms or so. */
bool session_alive(struct session *s);
/*
 * Of a session whose connection has ended: has somebody ended it on purpose? Then there is to be no
 * other. 0, or -ECONNABORTED with the daemon's text.
 */
int session_kicked(struct session *s);

/*
 * Sends without an answer; waits until @deadline for room. 0, SESSION_E_UNSENT, or a negative
 * errno.
 */
int session_send_fd(struct session *s, const void *message, int fd_peek, int64_t deadline);
static inline int session_send(struct session *s, const void *message, int64_t deadline)
{
	return session_send_fd(s, message, -1, deadline);
}

/*
 * Tells the daemon that a draft is given up, without waiting: an ABORT that does not fit into the
 * socket is sent before the next message.
 */
void session_abort(struct session *s, uint64_t ref);
/* The same for a handler of messages, which holds the receive mutex. */
void session_abort_locked(struct session *s, uint64_t ref);

/*
 * Another daemon has taken the connection over, and the former one may have done what the request
 * asks for. True: it has, and *@answer is filled. Otherwise the request, which may be changed, is
 * sent again.
 */
typedef bool session_done(struct session *s, void *message, struct conn_message *answer,
			  void *context);

/*
 * Sends and waits for the answer, whatever it is. 0, SESSION_E_UNSENT or _LOST, or a negative
 * errno. @done may be NULL: the request can be made twice.
 */
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

/*
 * An answer with @serial, to what another message asks for too. Pending until session_await() or
 * session_forget().
 */
void session_expect(struct session *s, uint32_t serial, struct request *req,
		    struct conn_message *answer);

/*
 * The halves of it: the request is pending from the first to the end of the second, or
 * session_forget().
 */
int session_ask_fd(struct session *s, void *message, int fd_peek, int64_t deadline,
		   struct request *req, struct conn_message *answer);
static inline int session_ask(struct session *s, void *message, int64_t deadline,
			      struct request *req, struct conn_message *answer)
{
	return session_ask_fd(s, message, -1, deadline, req, answer);
}
/* The same, if @life has not ended; SESSION_E_ADOPTED if it has. */
int session_ask_in_life(struct session *s, void *message, uint32_t life, int64_t deadline,
			struct request *req, struct conn_message *answer);
/* Has its answer come, or the connection ended? Then it needs no session_await() any more. */
bool session_answered(struct session *s, struct request *req);
int session_await(struct session *s, struct request *req, int64_t deadline);
void session_forget(struct session *s, struct request *req);

/* The ledger counts the draft that a DRAFT brought. To be called once for each that answered a
 * request. */
void session_granted(struct session *s);

/* A COMMIT of @name without an answer is sent, with @commit as its serial. An answer to @serial
 * says that it was processed. */
void session_unanswered(struct session *s, uint32_t serial, uint32_t commit, const char *name);
/* It was not sent. If another one was unanswered, what became of that one is not known still. */
void session_unsent(struct session *s, uint32_t commit);
/* @s takes the place of @old, which is lost: what became of such a COMMIT is not known. */
void session_inherit(struct session *s, struct session *old);

/* Reads what has arrived, without waiting. */
void session_drain(struct session *s);
void session_drain_expected(struct session *s); /* if some answer is to come */

/*
 * What became of a COMMIT that this thread did not wait for, once: 0, or the first error with its
 * text.
 */
int session_commit_error(struct session *s);

/* Are there any, of whatever thread? */
static inline bool session_has_refused(const struct session *s)
{
	return atomic_load_explicit(&s->refused.count, memory_order_relaxed) != 0;
}
