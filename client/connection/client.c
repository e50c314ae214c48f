/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients. A client's session is replaced when its connection has ended and a call needs one. One
 * thread at a time connects, without holding the mutex, which fork() takes; the others wait for
 * that thread. An old session ends with its last lease, except for some 10 KiB that are freed with
 * the client.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "client/connection/address.h"
#include "client/connection/client.h"
#include "client/connection/handshake.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/process.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "util/address.h"
#include "util/cancel.h"
#include "util/clock.h"

enum { MEETINGS_MAX = 9 };
enum { CONNECTS_A_START = 20 }; /* attempts 5 ms apart; twice as many after each start */

/* ---- Lifetime ---- */

struct tl_client *client_free(struct tl_client *client)
{
	if (!client)
		return NULL;
	while (client->sessions) {
		struct session *s = client->sessions;

		client->sessions = s->older;
		session_free(s);
	}
	pthread_cond_destroy(&client->renewed);
	pthread_mutex_destroy(&client->mutex);
	free(client);
	return NULL;
}

void client_unref(struct tl_client *client)
{
	if (atomic_fetch_sub(&client->refs, 1) != 1)
		return;
	process_remove_client(&client->link);
	client_free(client);
}

void client_init_renewed(struct tl_client *client)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&client->renewed, &attr);
	pthread_condattr_destroy(&attr);
}

struct tl_client *client_new(void)
{
	struct tl_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	atomic_store(&client->refs, 1);
	list_init(&client->link);
	list_init(&client->watches);
	list_init(&client->belows);
	pthread_mutex_init(&client->mutex, NULL);
	client_init_renewed(client);
	return client;
}

/* ---- Sessions ---- */

void client_session_ended(struct session *s)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	struct tl_client *client = s->client;

	pthread_mutex_lock(&client->mutex); /* fork() finds all of its resources, or none */
	child_hold_forget(s);
	outbox_end(s);
	session_deinit(s);
	pthread_mutex_unlock(&client->mutex);
	client_unref(client);
}

/* Called when the last user of a closing session has left: no other thread touches it. */
static void session_drained(struct use_count *users)
{
	struct session *s = container_of(users, struct session, users);

	if (!session_is_ours(s))
		return; /* its threads and its connection belong to the parent */
	if (!kinds_session_end(s))
		client_session_ended(s);
}

static bool nobody_listens(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

/* Connects. If no daemon listens and autostart is on, starts one. */
static int connect_socket(struct tl_client *client, struct handshake *handshake, int64_t deadline)
{
	unsigned start = 0;
	int r = address_connect(client->address.path, deadline, &handshake->socket);

	if (!r && (client->flags & TL_CONNECT_AUTOSTART))
		address_reap(); /* reap a start that an earlier call did not wait for to the end */
	if (!nobody_listens(r) || !(client->flags & TL_CONNECT_AUTOSTART) ||
	    address_is_service(client->address.path))
		return r;
	/* Another process's daemon may exist already, but not listen yet; or a daemon was dying and
	 * still held its lock. */
	for (unsigned connects = 0;; connects++) {
		if (connects == start) {
			r = address_autostart(client->address.path, deadline);
			if (r && (!start || r != -ETIMEDOUT)) /* the first start had all the time */
				return r;
			start = 2 * start + CONNECTS_A_START;
		}
		handshake_deinit(handshake);
		r = address_connect(client->address.path, deadline, &handshake->socket);
		if (!nobody_listens(r) || deadline_left_ns(deadline) < 5 * NS_PER_MS)
			return r;
		nap(5 * NS_PER_MS);
	}
}

/* Connects until a daemon has completed the handshake. If a daemon dies during it, begins anew
 * with its successor, which knows nothing of us. */
static int meet(struct tl_client *client, struct handshake *handshake, struct session **out,
		struct connect_until until)
{
	int r;

	for (unsigned meeting = 1;; meeting++) {
		r = connect_socket(client, handshake, until.taken);
		if (r)
			return r;
		r = session_new(out, &client->address, handshake, until.answered);
		if (r != -ENOTCONN || meeting == MEETINGS_MAX || deadline_passed(until.taken))
			return r;
		handshake_deinit(handshake);
	}
}

/* Replaces the present session by a new one. The caller has set `connecting`. After a failure
 * *@reached tells whether a daemon took the connection. */
static int make_session(struct tl_client *client, struct connect_until until, bool *reached)
{
	struct handshake handshake = HANDSHAKE_INIT;
	struct session *s = NULL, *old = NULL;
	int r;

	pthread_mutex_lock(&client->mutex);
	client->making = &handshake; /* a forked child closes it */
	pthread_mutex_unlock(&client->mutex);
	r = meet(client, &handshake, &s, until);
	*reached = handshake.socket >= 0;

	pthread_mutex_lock(&client->mutex);
	client->making = NULL;
	if (!r) {
		s->client = client;
		s->timeout_ns = client->timeout_ns;
		s->users.drained = session_drained;
		session_adopt_handshake(s, &handshake);
		atomic_fetch_add(&client->refs, 1);
		s->older = client->sessions;
		client->sessions = s;
		old = atomic_load(&client->session);
		atomic_store(&client->session, s);
	}
	pthread_mutex_unlock(&client->mutex);
	handshake_deinit(&handshake);
	if (old)
		session_close(old);
	return r;
}

/* Fails with a text that says since when there is no connection. A socket that we may not open now
 * may become ours to open: systemd makes it as root, and then gives it to its user and group. A
 * refusal by a daemon is final. */
static int renew_failure(const struct session *old, int r, bool reached)
{
	int64_t since_ns = old ? atomic_load(&old->watch.since_ns) : 0;

	if (r != -ENOENT && r != -ECONNREFUSED && r != -ENOTCONN && (r != -EACCES || reached))
		return r;
	if (!since_ns)
		return tl_fail(
			-ENOTCONN,
			"the connection to the daemon has ended, and there is no new one: %s",
			tl_failure_text());
	return tl_fail(-ENOTCONN,
		       "the connection to the daemon ended %.3f s ago, and there is no new one: %s",
		       (double)(now_mono_ns() - since_ns) / (double)NS_PER_SEC, tl_failure_text());
}

/* Waits while another thread connects. Returns 0, or -ETIMEDOUT. */
static int wait_renewed_locked(struct tl_client *client, const struct session *old,
			       int64_t deadline)
{
	struct timespec ts = { .tv_sec = deadline / NS_PER_SEC, .tv_nsec = deadline % NS_PER_SEC };

	while (client->connecting && atomic_load(&client->session) == old) {
		if (deadline == DEADLINE_NEVER)
			pthread_cond_wait(&client->renewed, &client->mutex);
		else if (pthread_cond_timedwait(&client->renewed, &client->mutex, &ts) == ETIMEDOUT)
			return tl_fail(-ETIMEDOUT,
				       "connecting to the daemon at %s again takes too long",
				       client->address.path);
	}
	return 0;
}

int client_renew(struct tl_client *client, struct session *old, struct connect_until until)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	bool reached;
	int r = process_fork_check();

	if (r)
		return r;
	if (process_exiting())
		return tl_fail(-ENOTCONN, "the process is ending");
	if (client->closed)
		return tl_fail(-ENOTCONN, "the client is closed");
	if (old)
		connection_watch_note(&old->watch);
	pthread_mutex_lock(&client->mutex);
	r = wait_renewed_locked(client, old, until.taken);
	if (!r && old && atomic_load(&client->session) == old)
		r = session_kicked(old);
	if (r || atomic_load(&client->session) != old) {
		pthread_mutex_unlock(&client->mutex);
		return r;
	}
	client->connecting = true;
	pthread_mutex_unlock(&client->mutex);

	r = make_session(client, until, &reached);

	pthread_mutex_lock(&client->mutex);
	client->connecting = false;
	pthread_cond_broadcast(&client->renewed);
	pthread_mutex_unlock(&client->mutex);
	return renew_failure(old, r, reached);
}

/* ---- The beginning and the end ---- */

int client_connect(struct tl_client *client)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	int64_t deadline = client_deadline(client);
	bool reached;
	int r;

	process_add_client(&client->link);
	r = make_session(client, (struct connect_until){ deadline, deadline }, &reached);
	if (r)
		process_remove_client(&client->link);
	return r;
}

struct session *client_close(struct tl_client *client)
{
	struct session *s;

	pthread_mutex_lock(&client->mutex);
	client->closed = true;
	s = atomic_exchange(&client->session, NULL);
	pthread_mutex_unlock(&client->mutex);
	if (client->flags & TL_CONNECT_AUTOSTART)
		address_reap();
	return s;
}
