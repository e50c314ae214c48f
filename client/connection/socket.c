/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: messages that nobody waits for, and that must not be lost. Those that do not fit into the
 * socket are kept in their order. The next sender sends them before its own message, but there may
 * be none for a long time. So a thread waits for space as long as any are kept.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/connection/request.h"
#include "client/connection/thread.h"
#include "proto/conn.h"
#include "util/cancel.h"

/* The daemon may read our messages only when its answers are read, so the thread reads from time to
 * time. notes_end() waits no longer than that. */
enum { LOOK_MS = 10, STACK = 512 << 10 };

/* How many bytes the message takes up among the notes. */
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

int notes_send_locked(struct session *s)
{
	struct notes *n = &s->notes;
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

/* Ends when all are sent, when the connection has ended, or when it is told to. */
static void *send_when_there_is_space(void *arg)
{
	struct session *s = arg;
	struct pollfd p = { .fd = session_socket(s), .events = POLLOUT };
	bool left = true;
	int r;

	while (left) {
		poll(&p, 1, LOOK_MS);
		session_drain(s);
		pthread_mutex_lock(&s->receive_mutex);
		r = notes_send_locked(s);
		left = is_full(r) && !atomic_load(&s->ended) && s->notes.state == NOTES_THREAD_RUNS;
		if (!left && s->notes.state == NOTES_THREAD_RUNS)
			s->notes.state = NOTES_THREAD_DONE;
		pthread_mutex_unlock(&s->receive_mutex);
		if (r == -ENOBUFS)
			poll(NULL, 0, 1); /* the socket has space, but the kernel has none */
	}
	return NULL;
}

/* Without a thread the notes go before the next message. */
static void start_thread_locked(struct session *s)
{
	struct notes *n = &s->notes;

	if (n->state == NOTES_THREAD_RUNS || n->state == NOTES_OVER)
		return;
	if (n->state == NOTES_THREAD_DONE)
		pthread_join(n->thread, NULL);
	n->state = thread_start(&n->thread, STACK, send_when_there_is_space, s) ? NOTES_NO_THREAD
										: NOTES_THREAD_RUNS;
}

void notes_end(struct session *s)
{
	struct notes *n = &s->notes;
	bool any;

	pthread_mutex_lock(&s->receive_mutex);
	any = n->state != NOTES_NO_THREAD;
	n->state = NOTES_OVER;
	pthread_mutex_unlock(&s->receive_mutex);
	if (any)
		pthread_join(n->thread, NULL);
}

static void keep_locked(struct session *s, const void *message)
{
	struct notes *n = &s->notes;
	struct wire_header h;
	unsigned char *more = realloc(n->bytes, n->used + note_size(message));

	if (!more)
		return; /* what it is about stays until the connection ends */
	memcpy(&h, message, sizeof(h));
	n->bytes = more;
	memcpy(n->bytes + n->used, message, h.length);
	n->used += note_size(message);
	atomic_store(&n->due, true);
	start_thread_locked(s);
}

/* False: the connection has ended, and what the message is about with it. */
static bool note_locked(struct session *s, const void *message)
{
	int r = atomic_load(&s->ended) ? -EPIPE : notes_send_locked(s);

	if (!r)
		r = conn_send(session_socket(s), message, -1, MSG_DONTWAIT);
	if (is_full(r))
		keep_locked(s, message);
	return !r || is_full(r);
}

/* Whoever receives finds out by itself that the connection has ended. */
void session_note_locked(struct session *s, const void *message)
{
	note_locked(s, message);
}

void session_note(struct session *s, const void *message)
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

	session_note_locked(s, &m);
}

void session_abort(struct session *s, uint64_t ref)
{
	const struct wire_ref m = abort_message(ref);

	session_note(s, &m);
}
