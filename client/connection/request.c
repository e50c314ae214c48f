/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of a session. Any thread sends them, and the threads that wait for answers read them. A
 * message is one datagram, so senders need no lock. Of the threads that wait for answers, one reads
 * the socket and hands each answer to its waiter; it does not hold the mutex while it waits. When
 * it has its own answer it leaves the reading to another. No thread reads when none waits; messages
 * that come then (answers to prefetched drafts) are read by the next thread that does. The reader
 * itself hands descriptors of drafts to mapping.c, in their order of arrival. The daemon sends one
 * descriptor for each segment, and from then on relies on us having it, even if no thread waits for
 * that draft any more.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "client/connection/address.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "proto/conn.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"

/* The reading thread checks its deadline after this many messages for other threads. */
enum { OTHERS_MAX = 64 };

/* Lets another thread that still waits read the socket. */
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

#define POLL_FIRST_NS (2 * NS_PER_MS)
#define POLL_LAST_NS (256 * NS_PER_MS)

/* Sleeps until there is a message, or one of @events. A request may wait for space that the daemon
 * makes by ending segments, and their memory is not free until we unmap it. So we look for ended
 * segments from time to time. */
static int sleep_for_message(struct session *s, short events, int64_t *look_ns, int64_t deadline)
{
	int64_t look;
	int r;

	if (!atomic_load_explicit(&s->mappings.sealed, memory_order_relaxed))
		return socket_wait(session_socket(s), events, deadline);
	look = deadline_after(*look_ns);
	r = socket_wait(session_socket(s), events, look < deadline ? look : deadline);
	if (r != -ETIMEDOUT || look >= deadline)
		return r;
	kinds_session_let_go(s);
	mappings_let_go(&s->mappings, MAPPINGS_ALL);
	*look_ns = *look_ns < POLL_LAST_NS ? *look_ns * 2 : *look_ns;
	return 0;
}

static int wait_for_message(struct session *s, short events, int64_t *look_ns, int64_t deadline)
{
	struct pollfd p = { .fd = session_socket(s), .events = events };
	bool ready = false;
	int r;

	spin_begin(&s->spin);
	while (!ready && spin_again(&s->spin))
		ready = poll(&p, 1, 0) > 0;
	r = ready ? 0 : sleep_for_message(s, events, look_ns, deadline);
	spin_end(&s->spin);
	return r == -EBADF ? 0 : r; /* receiving finds that the socket is closed */
}

/* Reads the socket until @req is done. */
static int read_until_done(struct session *s, const struct request *req, int64_t deadline)
{
	int64_t look_ns = POLL_FIRST_NS;
	unsigned others = 0;
	bool look = !req->fresh; /* a fresh request has no answer yet: saves a system call */
	int left, r = 0;

	s->reading = true;
	while (!req->done && !r) {
		if (look && session_receive_locked(s) != -EAGAIN) {
			if (++others % OTHERS_MAX == 0 && !req->done && deadline_passed(deadline))
				r = -ETIMEDOUT;
			continue;
		}
		look = true;
		left = session_send_due_locked(s);
		pthread_mutex_unlock(&s->receive_mutex);
		if (left == -ENOBUFS)
			r = pause_until(deadline);
		else
			r = wait_for_message(s, left == -EAGAIN ? POLLIN | POLLOUT : POLLIN,
					     &look_ns, deadline);
		pthread_mutex_lock(&s->receive_mutex);
	}
	pass_reading_locked(s);
	return req->done ? 0 : r;
}

/* Sleeps until the request is done, or until no thread reads the socket. */
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
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	pthread_condattr_t attr;
	pthread_cond_t wake;
	int64_t begun = now_mono_coarse_ns();
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
	/* The answer may lie unread in the socket if the reading thread did not get to run. */
	for (unsigned n = 0; !req->done && n < AT_ONCE_MAX && !session_receive_locked(s); n++)
		;
	req->wake = NULL;
	if (req->done) {
		r = req->result;
	} else {
		list_del(&req->link);
		atomic_store(&s->in_doubt, true); /* the daemon may still carry it out */
	}
	if (!s->reading)
		pass_reading_locked(s); /* we may have been woken to read: wake another for that */
	pthread_mutex_unlock(&s->receive_mutex);
	pthread_cond_destroy(&wake);
	if (r == -ECONNABORTED || r == SESSION_E_ENDED)
		return session_kicked(s) ? -ECONNABORTED : r;
	if (r == SESSION_E_ADOPTED && deadline_passed(deadline))
		r = -ETIMEDOUT; /* daemons replaced each other, and none answered */
	if (r == -ETIMEDOUT && session_lost(s))
		session_ended(s); /* the program closed the socket: later calls connect anew */
	return r < 0 ? answer_missing(r, s->address->path, now_mono_coarse_ns() - begun) : r;
}

void session_forget(struct session *s, struct request *req)
{
	pthread_mutex_lock(&s->receive_mutex);
	if (!req->done)
		list_del(&req->link);
	pthread_mutex_unlock(&s->receive_mutex);
}

static bool is_pending_locked(struct session *s, uint32_t serial)
{
	list_for_each(l, &s->pending)
		if (list_entry(l, struct request, link)->serial == serial)
			return true;
	return false;
}

/* Serials repeat after 2^32 messages, and a request may wait for longer than that. */
uint32_t session_serial(struct session *s)
{
	uint32_t serial;

	pthread_mutex_lock(&s->receive_mutex);
	do {
		serial = atomic_fetch_add(&s->serial, 1) + 1;
	} while (serial == 0 || is_pending_locked(s, serial));
	pthread_mutex_unlock(&s->receive_mutex);
	return serial;
}

void session_expect(struct session *s, uint32_t serial, struct request *req,
		    struct conn_message *answer)
{
	answer->fd = -1;
	*req = (struct request){ .answer = answer, .serial = serial };
	pthread_mutex_lock(&s->receive_mutex);
	req->life = atomic_load(&s->life);
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
	h->life = req->life;
	r = session_send_fd(s, message, fd_peek, deadline);
	if (r) {
		session_forget(s, req);
		h->serial = 0; /* a serial that no request has */
	}
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

int session_ask_in_life(struct session *s, void *message, uint32_t life, int64_t deadline,
			struct request *req, struct conn_message *answer)
{
	struct wire_header *h = message;
	int r;

	h->serial = session_serial(s);
	h->life = life;
	session_expect(s, h->serial, req, answer);
	r = req->life == life ? session_send(s, message, deadline) : SESSION_E_ADOPTED;
	if (r)
		session_forget(s, req);
	return r;
}

int session_call_unless(struct session *s, void *message, int fd_peek, int64_t deadline,
			struct conn_message *answer, session_done *done, void *context)
{
	struct request req;
	int r;

	for (;;) {
		r = session_ask_fd(s, message, fd_peek, deadline, &req, answer);
		if (r)
			return r;
		req.fresh = true;
		r = session_await(s, &req, deadline);
		if (r != SESSION_E_ADOPTED)
			return r;
		if (done && done(s, message, answer, context))
			return 0;
	}
}
