/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients. A client's session is replaced when its connection is gone and a call needs one: by one
 * thread at a time, without the mutex, which fork() takes; the others wait for it. Old sessions go
 * when their last lease does.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "client/error.h"
#include "client/session/address.h"
#include "client/session/client.h"
#include "client/session/kind.h"
#include "client/session/peer.h"
#include "client/session/pin.h"
#include "client/session/process.h"
#include "client/session/request.h"
#include "util/clock.h"

enum { RENEWALS_MAX = 8 };

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
	pthread_mutex_init(&client->mutex, NULL);
	client_init_renewed(client);
	return client;
}

/* ---- Sessions ---- */

void client_session_ended(struct session *s)
{
	struct tl_client *client = s->client;

	pthread_mutex_lock(&client->mutex); /* fork() finds all of it, or nothing */
	pin_forget(s);
	session_deinit(s);
	pthread_mutex_unlock(&client->mutex);
	client_unref(client);
}

/* The last user of a closing session has left: nobody else touches it. */
static void session_drained(struct users *users)
{
	struct session *s = container_of(users, struct session, users);

	if (!kinds_session_end(s))
		client_session_ended(s);
}

static bool nobody_listens(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

/* Connects, and starts a daemon if that is asked for and nobody listens. */
static int connect_socket(struct tl_client *client, struct session_peer *peer, int64_t deadline)
{
	int r = address_connect(client->address.path, deadline, &peer->socket);

	if (!nobody_listens(r) || !(client->flags & TL_CONNECT_AUTOSTART))
		return r;
	r = address_autostart(client->address.path, deadline);
	while (!r) { /* another process's daemon may be there already, but not listen yet */
		peer_deinit(peer);
		r = address_connect(client->address.path, deadline, &peer->socket);
		if (!r || !nobody_listens(r) || deadline_left_ns(deadline) < 5 * NS_PER_MS)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 5 * NS_PER_MS }, NULL);
		r = 0;
	}
	return r;
}

/* A daemon that dies before we are known to it may have a successor, which knows nothing of us. */
static int meet(struct tl_client *client, struct session_peer *peer, struct session **out,
		int64_t deadline)
{
	int r;

	for (unsigned attempt = 0;; attempt++) {
		r = connect_socket(client, peer, deadline);
		if (r)
			return r;
		r = session_new(out, &client->address, peer, deadline);
		if (r != -ENOTCONN || attempt == RENEWALS_MAX || deadline_passed(deadline))
			return r;
		peer_deinit(peer);
	}
}

/* Makes a session in the place of the one there is. `connecting` is ours. */
static int make_session(struct tl_client *client, int64_t deadline)
{
	struct session_peer peer = SESSION_PEER_INIT;
	struct session *s = NULL, *old = NULL;
	int r;

	pthread_mutex_lock(&client->mutex);
	client->making = &peer; /* a forked child closes it */
	pthread_mutex_unlock(&client->mutex);
	r = meet(client, &peer, &s, deadline);

	pthread_mutex_lock(&client->mutex);
	client->making = NULL;
	if (!r) {
		s->client = client;
		s->timeout_ns = client->timeout_ns;
		s->users.drained = session_drained;
		session_adopt_peer(s, &peer);
		atomic_fetch_add(&client->refs, 1);
		s->older = client->sessions;
		client->sessions = s;
		old = atomic_exchange(&client->session, s);
		if (old)
			session_inherit(s, old);
	}
	pthread_mutex_unlock(&client->mutex);
	peer_deinit(&peer);
	if (old)
		session_close(old);
	return r;
}

/* Says since when there is no connection. */
static int renew_failure(const struct session *old, int r)
{
	int64_t since_ns = old ? atomic_load(&old->hangup.since_ns) : 0;

	if (r != -ENOENT && r != -ECONNREFUSED && r != -ENOTCONN)
		return r;
	if (!since_ns)
		return tl_fail(-ENOTCONN,
			       "the connection to the daemon is gone, and there is no new one: %s",
			       tl_failure_text());
	return tl_fail(
		-ENOTCONN,
		"the connection to the daemon was lost %.3f s ago, and there is no new one: %s",
		(double)(now_mono_ns() - since_ns) / (double)NS_PER_SEC, tl_failure_text());
}

/* Waits while another thread connects. */
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

int client_renew(struct tl_client *client, struct session *old, int64_t deadline)
{
	int r;

	if (process_exiting())
		return tl_fail(-ENOTCONN, "the process is ending");
	if (old)
		hangup_note(&old->hangup);
	pthread_mutex_lock(&client->mutex);
	r = wait_renewed_locked(client, old, deadline);
	if (!r && old && atomic_load(&client->session) == old)
		r = session_kicked(old);
	if (r || atomic_load(&client->session) != old) {
		pthread_mutex_unlock(&client->mutex);
		return r;
	}
	client->connecting = true;
	pthread_mutex_unlock(&client->mutex);

	r = make_session(client, deadline);

	pthread_mutex_lock(&client->mutex);
	client->connecting = false;
	pthread_cond_broadcast(&client->renewed);
	pthread_mutex_unlock(&client->mutex);
	return renew_failure(old, r);
}

static int ends_all(const struct tl_client *client)
{
	return tl_fail(-ENOTCONN, "the daemon at %s ends every connection", client->address.path);
}

int client_enter_until(struct tl_client *client, bool connected, int64_t deadline, struct use *use)
{
	for (unsigned renewals = 0; renewals <= RENEWALS_MAX; renewals++) {
		struct session *s = atomic_load_explicit(&client->session, memory_order_acquire);
		int r;

		if (s && users_enter(&s->users)) {
			use->session = s;
			if (atomic_load_explicit(&s->pinned, memory_order_relaxed))
				pin_look(s);
			if (session_served(s) && !(connected && atomic_load(&s->lost)))
				return 0;
			client_leave(use);
		}
		if (!deadline) /* the clock is read by those who need it */
			deadline = client_deadline(client);
		else if (renewals && deadline_passed(deadline))
			break;
		r = client_renew(client, s, deadline);
		if (r)
			return r;
	}
	return ends_all(client);
}

int client_enter(struct tl_client *client, bool connected, struct use *use)
{
	return client_enter_until(client, connected, 0, use);
}

static int request_until(struct tl_client *client, int64_t deadline, void *message, unsigned want,
			 const char *what, struct conn_message *answer)
{
	for (unsigned attempt = 0;; attempt++) {
		struct use use;
		int r;

		r = client_enter_until(client, true, deadline, &use);
		if (r)
			return r;
		r = session_call(use.session, message, deadline, answer);
		client_leave(&use);
		if (r < 0)
			return r;
		if (!r)
			return want || answer->header.type == WIRE_ERROR
				       ? answer_expect(answer, want, what)
				       : 0;
		if (r == SESSION_E_LOST || attempt)
			return tl_fail(-ENOTCONN, "%s: the daemon at %s ended the connection", what,
				       client->address.path);
	}
}

int client_request(struct tl_client *client, void *message, unsigned want, const char *what,
		   struct conn_message *answer)
{
	return request_until(client, client_deadline(client), message, want, what, answer);
}

/*
 * How many entries a list may have. Clients may come and go while they are listed, so there may be
 * more of them than fit into the daemon at a time.
 */
static uint64_t list_max(enum client_list_kind kind, const struct catalog_view *catalog)
{
	switch (kind) {
	case LIST_CLIENTS:
		return 4 * (uint64_t)catalog->max_clients;
	case LIST_TENSORS:
		return catalog->slots;
	case LIST_DEVICES:
		return WIRE_DEVICES_MAX;
	case LIST_USERS:
		break;
	}
	return WIRE_USERS_MAX;
}

/* One more entry was told. */
static int list_count(struct tl_client *client, struct client_list *list, int64_t deadline,
		      const char *what)
{
	struct use use;
	uint64_t max;
	int r = client_enter_until(client, false, deadline, &use);

	if (r)
		return r;
	max = list_max(list->kind, &use.session->catalog);
	client_leave(&use);
	if (++list->told <= max)
		return 0;
	return tl_fail(
		-EPROTO,
		"%s: the daemon at %s told of more than %llu entries, the maximum of this list; "
		"check who runs it",
		what, client->address.path, (unsigned long long)max);
}

int client_request_next(struct tl_client *client, struct client_list *list, void *message,
			const char *what, struct conn_message *answer)
{
	int64_t began = now_mono_ns(), deadline = deadline_after(list->left_ns);
	int r;

	if (list->left_ns == 0)
		return tl_fail(-ETIMEDOUT,
			       "%s: the daemon at %s told of one after the other for all of the "
			       "client's timeout, %lld ms, and came to no end",
			       what, client->address.path,
			       (long long)(client->timeout_ns / NS_PER_MS));
	r = request_until(client, deadline, message, 0, what, answer);
	if (!r && answer->header.type != WIRE_DONE)
		r = list_count(client, list, deadline, what);
	if (list->left_ns > 0) {
		list->left_ns -= now_mono_ns() - began;
		if (list->left_ns < 0)
			list->left_ns = 0;
	}
	return r;
}

/* ---- The beginning and the end ---- */

int client_connect(struct tl_client *client)
{
	int r;

	process_add_client(&client->link);
	r = make_session(client, client_deadline(client));
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
	return s;
}
