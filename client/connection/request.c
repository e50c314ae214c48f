/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of a session. Any thread sends them, and the threads that wait for answers read. A
 * message is one datagram, so senders need no lock. Of the threads that wait for answers one reads
 * the socket and hands each answer to its waiter. When it has its own it leaves the reading to
 * another. The mutex is not held while it waits. No thread reads when none waits. Messages that
 * come then (answers to prefetched drafts) are read by the next one that does. The reader itself
 * hands descriptors of drafts to mapping.c, in their order of arrival. The daemon sends one for
 * each segment and relies on it from then on, even if no thread waits for that draft any more.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "client/error.h"
#include "client/connection/address.h"
#include "client/memory/memory_ops.h"
#include "client/connection/request.h"
#include "proto/conn.h"
#include "util/cancel.h"
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
		kinds_wake(); /* a thread of theirs may look for this answer without a wait */
}

static void ended_locked(struct session *s, int result)
{
	hangup_note(&s->hangup);
	atomic_store(&s->ended, true);
	if (session_lost(s))
		mappings_lose_descriptors(&s->mappings);
	kinds_wake(); /* no thread polls its socket from now on */
	list_for_each_safe(l, &s->pending)
		request_done(list_entry(l, struct request, link), result);
}

void session_ended(struct session *s)
{
	pthread_mutex_lock(&s->receive_mutex);
	ended_locked(s, SESSION_E_ENDED);
	pthread_mutex_unlock(&s->receive_mutex);
}

/* Messages that the daemon sent before its end are read first: a thread may wait for one. */
bool session_probe(struct session *s)
{
	struct pollfd p = { .fd = session_socket(s) };
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	if (atomic_load(&s->ended))
		return false;
	if (p.fd >= 0 && poll(&p, 1, 0) <= 0)
		return true;
	session_drain(s);
	return false;
}

bool session_alive(struct session *s)
{
	int64_t now = now_mono_coarse_ns();

	if (atomic_load(&s->ended))
		return false;
	if (now == atomic_load_explicit(&s->probed_ns, memory_order_relaxed))
		return true;
	atomic_store_explicit(&s->probed_ns, now, memory_order_relaxed);
	return session_probe(s);
}

/* ---- Another daemon ---- */

static int resume_locked(struct session *s)
{
	struct wire_plain m = { .header = { .type = WIRE_RESUMED,
					    .length = sizeof(m),
					    .life = atomic_load(&s->life) } };
	int r;

	if (!atomic_load(&s->resumed_due) || atomic_load(&s->granting))
		return 0;
	r = conn_send(session_socket(s), &m, -1, MSG_DONTWAIT);
	if (!r)
		atomic_store(&s->resumed_due, false);
	return r;
}

static void resume(struct session *s)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	pthread_mutex_lock(&s->receive_mutex);
	resume_locked(s);
	pthread_mutex_unlock(&s->receive_mutex);
}

/*
 * All answers of the dead daemon came before this message. Unanswered requests are sent again by
 * their waiters. Tensors that a session has published on GPUs end with the daemon, and so does that
 * session: its waiters send their requests again on the next one.
 */
static void adopted_locked(struct session *s, uint32_t life)
{
	bool goes_on = kinds_session_adopted(s);

	list_for_each_safe(l, &s->pending)
		request_done(list_entry(l, struct request, link), SESSION_E_ADOPTED);
	if (!goes_on) {
		shutdown(session_socket(s), SHUT_RDWR);
		ended_locked(s, SESSION_E_ENDED);
		return;
	}
	atomic_store(&s->life, life);
	atomic_store(&s->resumed_due, true);
	resume_locked(s);
}

/* ---- Sending ---- */

/* Sends the messages that could not be sent before. The daemon may answer only when it has read
 * them, since they free space. Returns 0, or why there are some left. */
static int send_due_locked(struct session *s)
{
	int r = notes_send_locked(s);

	return r ? r : resume_locked(s);
}

void session_granted(struct session *s)
{
	if (atomic_fetch_sub(&s->granting, 1) == 1 && atomic_load(&s->resumed_due))
		resume(s);
}

/* The daemon may read our messages only when we have read its answers, and perhaps no thread waits
 * for those. Another thread that reads may leave at any time. So we look from time to time. */
#define SEND_LOOK_NS (10 * NS_PER_MS)

/*
 * Waits until the socket has space, or until descriptors that this user has sent are received. The
 * kernel allows as many in flight as the process may have open, and does not tell when there are
 * fewer.
 */
static int wait_to_send(struct session *s, int why, int64_t deadline)
{
	int64_t look;
	int r;

	if (why != -EAGAIN && !pause_until(deadline))
		return 0; /* the socket may have space, and does not say when this ends */
	if (why != -EAGAIN)
		return send_refused(why, s->address->path);
	session_drain(s);
	look = deadline_after(SEND_LOOK_NS);
	r = socket_wait(session_socket(s), POLLOUT, look < deadline ? look : deadline);
	if (r == -EBADF || (r == -ETIMEDOUT && look < deadline))
		return 0; /* the next try finds whether the socket is closed */
	if (r == -ETIMEDOUT)
		return tl_fail(r, "the daemon at %s reads no messages", s->address->path);
	return r ? tl_fail(r, "waiting for the daemon at %s: %m", s->address->path) : 0;
}

static int send_notes(struct session *s)
{
	int r;

	pthread_mutex_lock(&s->receive_mutex);
	r = notes_send_locked(s);
	pthread_mutex_unlock(&s->receive_mutex);
	return r;
}

/* Notes go first: an IMPORT that overtook the UNMAPPED of the same segment would be unsaid. */
static int send_now(struct session *s, const void *message, int fd_peek)
{
	int r = atomic_load_explicit(&s->notes.due, memory_order_relaxed) ? send_notes(s) : 0;

	return r ? r : conn_send(session_socket(s), message, fd_peek, MSG_DONTWAIT);
}

int session_send_fd(struct session *s, const void *message, int fd_peek, int64_t deadline)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	if (atomic_load_explicit(&s->resumed_due, memory_order_relaxed))
		resume(s);
	for (;;) {
		int r = atomic_load(&s->ended) ? -EPIPE : send_now(s, message, fd_peek);

		switch (r) {
		case 0:
			return 0;
		case -EAGAIN:
		case -ENOBUFS:
		case -ETOOMANYREFS:
			r = wait_to_send(s, r, deadline);
			if (r)
				return r;
			break;
		default:
			if (!session_lost(s))
				return tl_fail(r, "sending to the daemon at %s: %m",
					       s->address->path);
			__attribute__((fallthrough));
		case -EPIPE:
		case -ECONNRESET:
		case -ENOTCONN:
			session_ended(s);
			r = session_kicked(s);
			return r ? r : SESSION_E_UNSENT;
		}
	}
}

/* ---- Receiving ---- */

/* A daemon may send without end. AT_ONCE_MAX messages are read at once where no thread waits. A
 * waiter that reads looks at the clock after each OTHERS_MAX messages for others. */
enum { AT_ONCE_MAX = 4096, OTHERS_MAX = 64 };

static void kicked_locked(struct session *s, const struct conn_message *m)
{
	const struct wire_error_reply *e = (const void *)m->bytes;

	s->kicked = true;
	memcpy(s->kicked_text, wire_tail(e, sizeof(*e)), e->text_len);
	s->kicked_text[e->text_len] = '\0';
	ended_locked(s, -ECONNABORTED);
}

static bool is_kick(const struct conn_message *m)
{
	return m->header.type == WIRE_ERROR && m->header.serial == 0 &&
	       ((const struct wire_error_reply *)(const void *)m->bytes)->code == WIRE_E_KICKED;
}

/* The next daemon takes a draft's client for a holder of its segment. It has to learn from the
 * ledger that the client can still write there when the draft is a published slot of a ring. */
static void draft_fd_locked(struct session *s, const struct wire_draft *draft, int fd_take)
{
	if (draft->segment != CATALOG_NONE)
		ledger_map_note(s->ledger, s->catalog.slots, draft->segment,
				draft->segment_generation);
	mapping_keep_draft_fd(&s->mappings, draft, fd_take);
}

/* Hands a message to its waiter. */
static void dispatch_locked(struct session *s, struct conn_message *m)
{
	uint32_t serial = m->header.serial;

	if (is_kick(m)) {
		kicked_locked(s, m);
		return;
	}
	if (m->header.type == WIRE_ADOPTED) {
		adopted_locked(s, m->header.life);
		return;
	}
	if (kinds_take(KIND_UNSOLICITED, s, m))
		return;
	if (m->header.type == WIRE_DRAFT && m->fd >= 0)
		draft_fd_locked(s, (const void *)m->bytes, take_fd(&m->fd));
	list_for_each(l, &s->pending) {
		struct request *req = list_entry(l, struct request, link);

		if (req->serial != serial)
			continue;
		memcpy(req->answer->bytes, m->bytes, m->header.length);
		/* nobody looks at what else answers a prefetch */
		req->answer->fd = req->spare ? fd_close(take_fd(&m->fd)) : take_fd(&m->fd);
		if (m->fd_lost && m->header.type != WIRE_GRANTED) {
			request_done(req, -EMFILE);
			return;
		}
		if (m->header.type == WIRE_DRAFT && !req->spare)
			atomic_fetch_add(&s->granting, 1); /* session_granted() */
		request_done(req, 0);
		return;
	}
	kinds_take(KIND_LATE, s, m);
	m->fd = fd_close(m->fd);
}

/* True if the slot and the segment in the message lie in this daemon's tables. wire_check() has
 * judged all else. The daemon may be another user's, and with a slot we write to our ledger. */
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

/* True unless its descriptor is lost, and the daemon counts on it that we have that. Others can be
 * asked for again, or done without: a ring is begun, but its producer does not have its page. */
static bool message_is_whole(const struct conn_message *m)
{
	switch (m->header.type) {
	case WIRE_SEGMENT:
	case WIRE_PAGE_OF:
	case WIRE_IMPORTED:
	case WIRE_GRANTED:
		return true;
	default:
		return !m->fd_lost;
	}
}

/* Ends the connection over an answer that is not whole. Only its own request fails: those of others
 * can be made on the next connection. */
static void lost_locked(struct session *s, uint32_t serial)
{
	list_for_each_safe(l, &s->pending) {
		struct request *req = list_entry(l, struct request, link);

		if (req->serial == serial)
			request_done(req, -EMFILE);
	}
	shutdown(session_socket(s), SHUT_RDWR);
	ended_locked(s, SESSION_E_ENDED);
}

/* Takes one message, if there is one, and hands it on. Returns 0, -EAGAIN, or a negative errno if
 * the connection has ended. */
static int receive_locked(struct session *s)
{
	struct conn_message m;
	int r = conn_receive(session_socket(s), WIRE_TO_CLIENT, &m, MSG_DONTWAIT);

	if (!r && !message_fits(s, &m)) {
		m.fd = fd_close(m.fd);
		r = -EBADMSG;
	}
	if (!r && !message_is_whole(&m)) {
		lost_locked(s, m.header.serial);
		return -EMFILE;
	}
	if (!r)
		dispatch_locked(s, &m);
	else if (r != -EAGAIN)
		ended_locked(s, r == -EBADMSG ? -EPROTO : SESSION_E_ENDED);
	return r;
}

/* A send may have found the connection ended, with the daemon's last message still unread. If the
 * daemon had messages of ours unread as well, the first receive fails with ECONNRESET. */
int session_kicked(struct session *s)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	bool reset = false;
	int r;

	pthread_mutex_lock(&s->receive_mutex);
	if (session_lost(s)) /* then nothing comes */
		ended_locked(s, SESSION_E_ENDED);
	for (unsigned n = 0; !s->kicked && n < AT_ONCE_MAX; n++) {
		r = receive_locked(s);
		if (r && (r != -ECONNRESET || reset))
			break;
		reset = r != 0;
	}
	r = s->kicked ? tl_fail(-ECONNABORTED, "%s", s->kicked_text) : 0;
	pthread_mutex_unlock(&s->receive_mutex);
	return r;
}

void session_drain(struct session *s)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	pthread_mutex_lock(&s->receive_mutex);
	if (!s->reading && !atomic_load(&s->ended))
		for (unsigned n = 0; n < AT_ONCE_MAX && !receive_locked(s); n++)
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

/* Leaves the reading to another thread that still waits. */
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

#define LOOK_FIRST_NS (2 * NS_PER_MS)
#define LOOK_LAST_NS (256 * NS_PER_MS)

/*
 * Sleeps until there is a message, or one of @events. A request may wait for space that the daemon
 * makes by ending segments, and there is none before we let go of them. So we look for ended
 * segments from time to time.
 */
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
	*look_ns = *look_ns < LOOK_LAST_NS ? *look_ns * 2 : *look_ns;
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
	return r == -EBADF ? 0 : r; /* to receive finds that the socket is closed */
}

/* Reads the socket until @req is done. */
static int read_until_done(struct session *s, const struct request *req, int64_t deadline)
{
	int64_t look_ns = LOOK_FIRST_NS;
	unsigned others = 0;
	bool look = !req->fresh; /* else the answer cannot be there yet: saves a system call */
	int left, r = 0;

	s->reading = true;
	while (!req->done && !r) {
		if (look && receive_locked(s) != -EAGAIN) {
			if (++others % OTHERS_MAX == 0 && !req->done && deadline_passed(deadline))
				r = -ETIMEDOUT;
			continue;
		}
		look = true;
		left = send_due_locked(s);
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

/* Sleeps until @req is done, or no thread reads any more. */
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
	/* The thread that reads may not have run for long, nor this process. */
	for (unsigned n = 0; !req->done && n < AT_ONCE_MAX && !receive_locked(s); n++)
		;
	req->wake = NULL;
	if (req->done) {
		r = req->result;
	} else {
		list_del(&req->link);
		atomic_store(&s->in_doubt, true); /* the daemon may still carry it out */
	}
	if (!s->reading)
		pass_reading_locked(s); /* we may have been woken to read, and leave instead */
	pthread_mutex_unlock(&s->receive_mutex);
	pthread_cond_destroy(&wake);
	if (r == -ECONNABORTED || r == SESSION_E_ENDED)
		return session_kicked(s) ? -ECONNABORTED : r;
	if (r == SESSION_E_ADOPTED && deadline_passed(deadline))
		r = -ETIMEDOUT; /* daemons replaced each other, and none answered */
	if (r == -ETIMEDOUT && session_lost(s))
		session_ended(s); /* another socket has its number: later calls connect anew */
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

/* Serials come again after 2^32 messages, and a request may wait for longer than that. */
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
		h->serial = 0; /* no request has it */
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
