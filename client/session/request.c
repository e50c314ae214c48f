/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of a session: sent by any thread, answers read by whoever waits for one. A message is
 * one datagram, so senders need no lock. Of the threads that wait for answers one reads the socket
 * and hands each answer to its waiter; when it has its own it leaves the reading to another. The
 * mutex is not held while it waits. Nothing reads when nobody waits: what comes then (answers to
 * prefetched drafts, refusals of commits) is read by the next call that produces,
 * session_drain(). Descriptors of drafts are handed to mapping.c by the reader itself, in the order
 * in which they came: the daemon sends one for each segment and counts on it from then on, also if
 * nobody waits for that draft any more.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "client/error.h"
#include "client/session/kind.h"
#include "client/session/request.h"
#include "proto/conn.h"
#include "util/cleanup.h"
#include "util/clock.h"

/* ---- The end of a connection ---- */

static void request_done(struct request *req, int result)
{
	list_del(&req->link);
	req->result = result;
	req->done = true;
	if (req->wake)
		pthread_cond_signal(req->wake);
	else
		kinds_wake(); /* it may be one that a thread of theirs looks for without a wait */
}

static void lost_locked(struct session *s, int result)
{
	atomic_store(&s->lost, true);
	kinds_wake(); /* nobody polls its socket from now on */
	list_for_each_safe(l, &s->pending)
		request_done(list_entry(l, struct request, link), result);
}

void session_lost(struct session *s)
{
	pthread_mutex_lock(&s->receive_mutex);
	lost_locked(s, SESSION_E_LOST);
	pthread_mutex_unlock(&s->receive_mutex);
}

bool session_probe(struct session *s)
{
	char byte;
	ssize_t n;

	if (atomic_load(&s->lost))
		return false;
	n = recv(s->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return true;
	session_lost(s);
	return false;
}

/* ---- Sending ---- */

static int abort_now(struct session *s, uint64_t ref)
{
	struct wire_ref m = { .header = { .type = WIRE_ABORT, .length = sizeof(m) }, .ref = ref };

	return conn_send(s->socket, &m, -1, MSG_DONTWAIT);
}

static void abort_later_locked(struct session *s, uint64_t ref)
{
	uint64_t *more = realloc(s->aborts, (s->naborts + 1) * sizeof(*more));

	if (!more)
		return; /* the draft stays until the connection ends */
	s->aborts = more;
	s->aborts[s->naborts++] = ref;
	atomic_store(&s->aborts_due, true);
}

void session_abort_locked(struct session *s, uint64_t ref)
{
	if (abort_now(s, ref))
		abort_later_locked(s, ref);
}

static void send_aborts(struct session *s)
{
	pthread_mutex_lock(&s->receive_mutex);
	while (s->naborts && !abort_now(s, s->aborts[s->naborts - 1]))
		s->naborts--;
	atomic_store(&s->aborts_due, s->naborts > 0);
	pthread_mutex_unlock(&s->receive_mutex);
}

int session_send_fd(struct session *s, const void *message, int fd_peek, int64_t deadline)
{
	if (atomic_load_explicit(&s->aborts_due, memory_order_relaxed))
		send_aborts(s);
	for (;;) {
		int r = atomic_load(&s->lost)
				? -EPIPE
				: conn_send(s->socket, message, fd_peek, MSG_DONTWAIT);

		switch (r) {
		case 0:
			return 0;
		case -EAGAIN:
		case -ENOBUFS:
			r = socket_wait(s->socket, POLLOUT, deadline);
			if (r == -ETIMEDOUT)
				return tl_fail(r, "the daemon at %s reads no messages", s->address);
			if (r)
				return tl_fail(r, "waiting for the daemon at %s: %m", s->address);
			break;
		case -EPIPE:
		case -ECONNRESET:
		case -ENOTCONN:
			session_lost(s);
			return SESSION_E_UNSENT;
		default:
			return tl_fail(r, "sending to the daemon at %s: %m", s->address);
		}
	}
}

void session_abort(struct session *s, uint64_t ref, int64_t deadline)
{
	struct wire_ref m = { .header = { .type = WIRE_ABORT, .length = sizeof(m) }, .ref = ref };

	if (session_send(s, &m, deadline) >= 0)
		return;
	pthread_mutex_lock(&s->receive_mutex);
	abort_later_locked(s, ref);
	pthread_mutex_unlock(&s->receive_mutex);
}

/* ---- Receiving ---- */

static void commit_refused(struct session *s, const struct conn_message *m)
{
	const struct wire_error_reply *e = (const void *)m->bytes;

	if (s->commit_error)
		return; /* the first one is told */
	s->commit_error = answer_errno(e->code);
	memcpy(s->commit_text, wire_tail(e, sizeof(*e)), e->text_len);
	s->commit_text[e->text_len] = '\0';
}

/* Hands a message to who waits for it. */
static void dispatch_locked(struct session *s, struct conn_message *m)
{
	uint32_t serial = m->header.serial;

	if (kinds_take(KIND_UNASKED, s, m))
		return;
	/* processed in order: an answer to a later message says that a commit was, too */
	if ((int32_t)((serial - s->unanswered) << 1) >= 0)
		s->unanswered = 0;
	if (m->header.type == WIRE_DRAFT && m->fd >= 0)
		mapping_keep_draft_fd(&s->mappings, (const void *)m->bytes, take_fd(&m->fd));
	if (m->header.type == WIRE_ERROR && (serial & SESSION_COMMIT_SERIAL)) {
		commit_refused(s, m);
		return;
	}
	list_for_each(l, &s->pending) {
		struct request *req = list_entry(l, struct request, link);

		if (req->serial != serial)
			continue;
		memcpy(req->answer->bytes, m->bytes, m->header.length);
		req->answer->fd = take_fd(&m->fd);
		request_done(req, 0);
		return;
	}
	kinds_take(KIND_LATE, s, m);
	m->fd = fd_close(m->fd);
}

/*
 * Do the slot and the segment in it lie in this daemon's tables? All else was judged by
 * wire_check(). The daemon may be another user's: what we do with a slot is to write to our ledger.
 */
static bool message_fits(const struct session *s, const struct conn_message *m)
{
	const void *bytes = m->bytes;
	const struct wire_draft *draft = bytes;

	switch (m->header.type) {
	case WIRE_DRAFT:
		return ref_slot(draft->ref) < s->catalog.slots &&
		       (draft->segment < s->catalog.slots || draft->segment == CATALOG_NONE);
	case WIRE_PLACED:
		return ref_slot(((const struct wire_placed *)bytes)->ref) < s->catalog.slots;
	case WIRE_EXPORTED:
		return ((const struct wire_segment_ref *)bytes)->segment < s->catalog.slots;
	default:
		return true;
	}
}

/*
 * Takes one message, if there is one, and hands it on. 0, -EAGAIN, or a negative errno: the
 * connection is gone.
 */
static int receive_locked(struct session *s)
{
	struct conn_message m;
	int r = conn_receive(s->socket, WIRE_TO_CLIENT, &m, MSG_DONTWAIT);

	if (!r && !message_fits(s, &m)) {
		m.fd = fd_close(m.fd);
		r = -EBADMSG;
	}
	if (!r)
		dispatch_locked(s, &m);
	else if (r != -EAGAIN)
		lost_locked(s, r == -EBADMSG ? -EPROTO : SESSION_E_LOST);
	return r;
}

void session_drain(struct session *s)
{
	pthread_mutex_lock(&s->receive_mutex);
	if (!s->reading && !atomic_load(&s->lost))
		while (!receive_locked(s))
			;
	pthread_mutex_unlock(&s->receive_mutex);
}

void session_drain_expected(struct session *s)
{
	bool any;

	pthread_mutex_lock(&s->receive_mutex);
	any = !list_empty(&s->pending);
	pthread_mutex_unlock(&s->receive_mutex);
	if (any)
		session_drain(s);
}

void session_unanswered(struct session *s, uint32_t serial)
{
	pthread_mutex_lock(&s->receive_mutex);
	s->unanswered = serial & ~SESSION_COMMIT_SERIAL;
	pthread_mutex_unlock(&s->receive_mutex);
}

void session_inherit(struct session *s, struct session *old)
{
	pthread_mutex_lock(&old->receive_mutex);
	if (old->unanswered && !s->commit_error) {
		s->commit_error = -ENOTCONN;
		snprintf(s->commit_text, sizeof(s->commit_text),
			 "the connection was lost before the daemon answered anything after it");
	}
	pthread_mutex_unlock(&old->receive_mutex);
}

int session_commit_error(struct session *s)
{
	int err;

	pthread_mutex_lock(&s->receive_mutex);
	err = s->commit_error;
	s->commit_error = 0;
	if (err)
		tl_fail(err, "an earlier commit may not have been published: %s", s->commit_text);
	pthread_mutex_unlock(&s->receive_mutex);
	return err;
}

/* Leaves the reading to somebody who still waits. */
static void pass_reading_locked(struct session *s)
{
	s->reading = false;
	list_for_each(l, &s->pending) {
		struct request *req = list_entry(l, struct request, link);

		if (req->wake) {
			pthread_cond_signal(req->wake);
			return;
		}
	}
}

/* Reads the socket until @req is done. */
static int read_until_done(struct session *s, const struct request *req, int64_t deadline)
{
	bool look = !req->fresh; /* else the answer cannot be there yet: do not ask for nothing */
	int r = 0;

	s->reading = true;
	while (!req->done && !r) {
		if (look && receive_locked(s) != -EAGAIN)
			continue;
		look = true;
		pthread_mutex_unlock(&s->receive_mutex);
		r = socket_wait(s->socket, POLLIN, deadline);
		pthread_mutex_lock(&s->receive_mutex);
	}
	pass_reading_locked(s);
	return req->done ? 0 : r;
}

/* Sleeps until @req is done, or nobody reads any more. */
static int sleep_until_woken(struct session *s, pthread_cond_t *wake, int64_t deadline)
{
	struct timespec ts = { .tv_sec = deadline / NS_PER_SEC, .tv_nsec = deadline % NS_PER_SEC };

	if (deadline == DEADLINE_NEVER)
		pthread_cond_wait(wake, &s->receive_mutex);
	else if (pthread_cond_timedwait(wake, &s->receive_mutex, &ts) == ETIMEDOUT)
		return -ETIMEDOUT;
	return 0;
}

int session_await(struct session *s, struct request *req, int64_t deadline)
{
	pthread_condattr_t attr;
	pthread_cond_t wake;
	int r = 0;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&wake, &attr);
	pthread_condattr_destroy(&attr);

	pthread_mutex_lock(&s->receive_mutex);
	req->wake = &wake;
	while (!req->done && !r)
		r = s->reading ? sleep_until_woken(s, &wake, deadline)
			       : read_until_done(s, req, deadline);
	req->wake = NULL;
	if (req->done)
		r = req->result;
	else
		list_del(&req->link);
	if (!s->reading)
		pass_reading_locked(s); /* we may have been woken for that, and leave */
	pthread_mutex_unlock(&s->receive_mutex);
	pthread_cond_destroy(&wake);
	if (r == -EPROTO || r == -ETIMEDOUT)
		return tl_fail(r, "the daemon at %s %s", s->address,
			       r == -EPROTO ? "broke the protocol" : "did not answer in time");
	return r < 0 ? tl_fail(r, "waiting for the daemon at %s: %m", s->address) : r;
}

void session_forget(struct session *s, struct request *req)
{
	pthread_mutex_lock(&s->receive_mutex);
	if (!req->done)
		list_del(&req->link);
	pthread_mutex_unlock(&s->receive_mutex);
}

void session_expect(struct session *s, uint32_t serial, struct request *req,
		    struct conn_message *answer)
{
	answer->fd = -1;
	*req = (struct request){ .answer = answer, .serial = serial };
	pthread_mutex_lock(&s->receive_mutex);
	list_add_tail(&s->pending, &req->link);
	pthread_mutex_unlock(&s->receive_mutex);
}

int session_ask_fd(struct session *s, void *message, int fd_peek, int64_t deadline,
		   struct request *req, struct conn_message *answer)
{
	struct wire_header *h = message;
	int r;

	h->serial = session_serial(s);
	session_expect(s, h->serial, req, answer);
	r = session_send_fd(s, message, fd_peek, deadline);
	if (r)
		session_forget(s, req);
	return r;
}

bool session_answered(struct session *s, struct request *req)
{
	bool done;

	pthread_mutex_lock(&s->receive_mutex);
	done = req->done;
	pthread_mutex_unlock(&s->receive_mutex);
	return done;
}

int session_call_fd(struct session *s, void *message, int fd_peek, int64_t deadline,
		    struct conn_message *answer)
{
	struct request req;
	int r = session_ask_fd(s, message, fd_peek, deadline, &req, answer);

	req.fresh = true;
	return r ? r : session_await(s, &req, deadline);
}
