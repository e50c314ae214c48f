/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket of a session: sending, receiving, and the end of the connection. Its outbox keeps
 * messages that nobody waits for, that do not fit into the socket, and that must not be lost, in
 * their order. The next sender sends them before its own message, but there may be none for a long
 * time. So a thread waits for space in the socket as long as the outbox has messages.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "client/connection/address.h"
#include "client/connection/socket.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "proto/conn.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/thread.h"

/* The daemon may read our messages only when we have read its answers, and perhaps no thread waits
 * for those. So a thread that waits for space in the socket reads from time to time. outbox_end()
 * waits for that thread no longer than this. */
enum { READ_MS = 10, STACK = 512 << 10 };

/* How many bytes the message takes up in the outbox. */
static size_t note_size(const void *message)
{
	struct wire_header h;

	memcpy(&h, message, sizeof(h));
	return (h.length + (size_t)7) / 8 * 8;
}

static bool is_full(int r)
{
	return r == -EAGAIN || r == -ENOBUFS;
}

int outbox_send_locked(struct session *s)
{
	struct outbox *n = &s->outbox;
	size_t sent = 0;
	int r = 0;

	while (sent < n->used) {
		r = conn_send(session_socket(s), n->bytes + sent, -1, MSG_DONTWAIT);
		if (r)
			break;
		sent += note_size(n->bytes + sent);
	}
	if (sent) {
		n->used -= sent;
		memmove(n->bytes, n->bytes + sent, n->used);
		atomic_store(&n->due, n->used > 0);
	}
	return r;
}

/* The outbox's thread. Ends when all messages are sent, when the connection has ended, or when it
 * is told to. */
static void *send_when_there_is_space(void *arg)
{
	struct session *s = arg;
	struct pollfd p = { .fd = session_socket(s), .events = POLLOUT };
	bool left = true;
	int r;

	while (left) {
		poll(&p, 1, READ_MS);
		session_drain(s);
		pthread_mutex_lock(&s->receive_mutex);
		r = outbox_send_locked(s);
		left = is_full(r) && !atomic_load(&s->ended) &&
		       s->outbox.state == OUTBOX_THREAD_RUNS;
		if (!left && s->outbox.state == OUTBOX_THREAD_RUNS)
			s->outbox.state = OUTBOX_THREAD_DONE;
		pthread_mutex_unlock(&s->receive_mutex);
		if (r == -ENOBUFS)
			poll(NULL, 0, 1); /* the socket has space, but the kernel lacks memory */
	}
	return NULL;
}

/* If no thread can be started, the outbox is sent before the next message. */
static void start_thread_locked(struct session *s)
{
	struct outbox *n = &s->outbox;

	if (n->state == OUTBOX_THREAD_RUNS || n->state == OUTBOX_OVER)
		return;
	if (n->state == OUTBOX_THREAD_DONE)
		pthread_join(n->thread, NULL);
	n->state = thread_start(&n->thread, STACK, send_when_there_is_space, s)
			   ? OUTBOX_NO_THREAD
			   : OUTBOX_THREAD_RUNS;
}

void outbox_end(struct session *s)
{
	struct outbox *n = &s->outbox;
	bool any;

	pthread_mutex_lock(&s->receive_mutex);
	any = n->state != OUTBOX_NO_THREAD;
	n->state = OUTBOX_OVER;
	pthread_mutex_unlock(&s->receive_mutex);
	if (any)
		pthread_join(n->thread, NULL);
}

static void keep_locked(struct session *s, const void *message)
{
	struct outbox *n = &s->outbox;
	struct wire_header h;
	unsigned char *more = realloc(n->bytes, n->used + note_size(message));

	if (!more)
		return; /* no memory: what it releases stays until the connection ends */
	memcpy(&h, message, sizeof(h));
	n->bytes = more;
	memcpy(n->bytes + n->used, message, h.length);
	n->used += note_size(message);
	atomic_store(&n->due, true);
	start_thread_locked(s);
}

/* Sends the message, or puts it into the outbox. False: the connection has ended, and so has
 * everything that the message could release. */
static bool note_locked(struct session *s, const void *message)
{
	int r = atomic_load(&s->ended) ? -EPIPE : outbox_send_locked(s);

	if (!r)
		r = conn_send(session_socket(s), message, -1, MSG_DONTWAIT);
	if (is_full(r))
		keep_locked(s, message);
	return !r || is_full(r);
}

/* Ignores the end of the connection: the caller is reading the socket and will find it. */
void session_post_locked(struct session *s, const void *message)
{
	note_locked(s, message);
}

void session_post(struct session *s, const void *message)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	bool there;

	pthread_mutex_lock(&s->receive_mutex);
	there = note_locked(s, message);
	pthread_mutex_unlock(&s->receive_mutex);
	if (!there)
		session_ended(s);
}

static struct wire_ref abort_message(uint64_t ref)
{
	return (struct wire_ref){
		.header = { .type = WIRE_ABORT, .length = sizeof(struct wire_ref) }, .ref = ref
	};
}

void session_abort_locked(struct session *s, uint64_t ref)
{
	const struct wire_ref m = abort_message(ref);

	session_post_locked(s, &m);
}

void session_abort(struct session *s, uint64_t ref)
{
	const struct wire_ref m = abort_message(ref);

	session_post(s, &m);
}

/* ---- The end of a connection ---- */

static void request_done(struct request *req, int result)
{
	list_del(&req->link);
	req->result = result;
	req->done = true;
	if (req->wake)
		pthread_cond_signal(req->wake);
	else
		kinds_wake(); /* a kind's thread may poll for this answer */
}

static void ended_locked(struct session *s, int result)
{
	connection_watch_note(&s->watch);
	atomic_store(&s->ended, true);
	if (session_lost(s))
		mappings_lose_descriptors(&s->mappings);
	kinds_wake(); /* their threads no longer poll the session's socket */
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

/* Sends the outbox. The daemon may answer only when it has read these messages, since they free
 * space. Returns 0, or why there are some left. */
int session_send_due_locked(struct session *s)
{
	int r = outbox_send_locked(s);

	return r ? r : resume_locked(s);
}

void session_granted(struct session *s)
{
	if (atomic_fetch_sub(&s->granting, 1) == 1 && atomic_load(&s->resumed_due))
		resume(s);
}

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
		return 0; /* no event reports that this has ended: just try again */
	if (why != -EAGAIN)
		return send_refused(why, s->address->path);
	session_drain(s);
	look = deadline_after(READ_MS * NS_PER_MS);
	r = socket_wait(session_socket(s), POLLOUT, look < deadline ? look : deadline);
	if (r == -EBADF || (r == -ETIMEDOUT && look < deadline))
		return 0; /* the next attempt finds out whether the socket is closed */
	if (r == -ETIMEDOUT)
		return tl_fail(r, "the daemon at %s reads no messages", s->address->path);
	return r ? tl_fail(r, "waiting for the daemon at %s: %m", s->address->path) : 0;
}

static int send_outbox(struct session *s)
{
	int r;

	pthread_mutex_lock(&s->receive_mutex);
	r = outbox_send_locked(s);
	pthread_mutex_unlock(&s->receive_mutex);
	return r;
}

/* The outbox goes first: an IMPORT that overtook the UNMAPPED of the same segment would be undone
 * by it. */
static int send_now(struct session *s, const void *message, int fd_peek)
{
	int r = atomic_load_explicit(&s->outbox.due, memory_order_relaxed) ? send_outbox(s) : 0;

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

/* Notes the segment in the ledger, too. The next daemon takes the client of a draft for a holder of
 * its segment. But once the draft is a published row of a ring, only the ledger tells that daemon
 * that the client can still write there. */
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
		/* a prefetch needs only a DRAFT's descriptor, taken above */
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
 * checked all else. The daemon may be another user's, and we write to our ledger at that slot. */
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

/* False if the message's descriptor is lost and the daemon relies on us having it. Other
 * descriptors can be asked for again, or are not needed: without GRANTED's page a ring exists, but
 * its producer cannot use it. */
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

/* Ends the connection because an answer has lost its descriptor. Only the request that it answers
 * fails: the others can be made on the next connection. */
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
int session_receive_locked(struct session *s)
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
	if (session_lost(s)) /* then no message can come */
		ended_locked(s, SESSION_E_ENDED);
	for (unsigned n = 0; !s->kicked && n < AT_ONCE_MAX; n++) {
		r = session_receive_locked(s);
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
		for (unsigned n = 0; n < AT_ONCE_MAX && !session_receive_locked(s); n++)
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
