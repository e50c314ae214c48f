/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients, and the public functions that are a request each. A client's session is replaced when
 * its connection is gone and a call needs one: by one thread at a time, without the mutex, which
 * fork() takes; the others wait for it. Old sessions go when their last lease does.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/address.h"
#include "client/client.h"
#include "client/cuda/finish.h"
#include "client/cuda/session.h"
#include "client/error.h"
#include "client/fork.h"
#include "client/produce.h"
#include "client/request.h"
#include "client/session.h"
#include "proto/conn.h"
#include "tensor/limits.h"
#include "tensor/name.h"
#include "util/clock.h"

/* The public header stands alone, so it says the limits of the protocol a second time. */
static_assert(TL_NAME_MAX == TENSOR_NAME_MAX, "one limit");
static_assert(TL_NDIM_MAX == TENSOR_NDIM_MAX, "one limit");
static_assert(TL_METADATA_MAX == TENSOR_META_MAX, "one limit");
static_assert(TL_ALIGNMENT == TENSOR_ALIGNMENT, "one alignment");

TL_API const char *tl_version(void)
{
	return TENSORLEASE_VERSION;
}

enum { RENEWALS_MAX = 8 };

static pthread_once_t debug_once = PTHREAD_ONCE_INIT;

static void debug_init(void)
{
	conn_debug_init("client");
}

/* ---- Arguments ---- */

int client_options(void *to, size_t to_size, const void *from, size_t first_size, const char *what)
{
	size_t size = *(const size_t *)from;

	if (__builtin_expect(size == to_size, 1)) {
		memcpy(to, from, to_size);
		return 0;
	}
	if (size < first_size)
		return tl_fail(-EINVAL, "%s.size is %zu; it is sizeof(%s), at least %zu", what,
			       size, what, first_size);
	for (size_t i = to_size; i < size; i++)
		if (((const unsigned char *)from)[i])
			return tl_fail(
				-EINVAL,
				"%s.size is %zu, and beyond the %zu bytes known here not all is 0",
				what, size, to_size);
	memset(to, 0, to_size);
	memcpy(to, from, size < to_size ? size : to_size);
	*(size_t *)to = to_size;
	return 0;
}

int client_result_check(const void *result, size_t known, const char *what)
{
	size_t size = *(const size_t *)result;

	return size >= known ? 0
			     : tl_fail(-EINVAL, "%s.size is %zu; it is sizeof(%s), at least %zu",
				       what, size, what, known);
}

void client_result(void *result, void *from, size_t known)
{
	size_t size = *(const size_t *)result;

	*(size_t *)from = size;
	memcpy(result, from, known);
	memset((char *)result + known, 0, size - known);
}

int client_check_name(const char *name, size_t len)
{
	const char *why;

	if (!tensor_name_check(name, len, &why))
		return 0;
	return tl_fail(-EINVAL, "'%.*s' is not a name: %s",
		       len > TL_NAME_MAX ? TL_NAME_MAX : (int)len, name, why);
}

int64_t client_deadline(const struct tl_client *client)
{
	return deadline_after(client->timeout_ns);
}

/* ---- Lifetime ---- */

static struct tl_client *client_free(struct tl_client *client)
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
	fork_remove_client(client);
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

static struct tl_client *client_alloc(void)
{
	struct tl_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	atomic_store(&client->refs, 1);
	list_init(&client->link);
	pthread_mutex_init(&client->mutex, NULL);
	client_init_renewed(client);
	return client;
}

/* ---- Sessions ---- */

static bool nobody_listens(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

/* Connects, and starts a daemon if that is asked for and nobody listens. */
static int connect_socket(struct tl_client *client, struct session_peer *peer, int64_t deadline)
{
	int r = address_connect(client->address, deadline, &peer->socket);

	if (!nobody_listens(r) || !(client->flags & TL_CONNECT_AUTOSTART))
		return r;
	r = address_autostart(client->address, deadline);
	while (!r) { /* another process's daemon may be there already, but not listen yet */
		session_peer_deinit(peer);
		r = address_connect(client->address, deadline, &peer->socket);
		if (!r || !nobody_listens(r) || deadline_left_ns(deadline) < 5 * NS_PER_MS)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 5 * NS_PER_MS }, NULL);
		r = 0;
	}
	return r;
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
	r = connect_socket(client, &peer, deadline);
	if (!r)
		r = session_new(&s, client, &peer, deadline);

	pthread_mutex_lock(&client->mutex);
	client->making = NULL;
	if (!r) {
		session_adopt_peer(s, &peer);
		atomic_fetch_add(&client->refs, 1);
		s->older = client->sessions;
		client->sessions = s;
		old = atomic_exchange(&client->session, s);
		if (old)
			session_inherit(s, old);
	}
	pthread_mutex_unlock(&client->mutex);
	session_peer_deinit(&peer);
	if (old)
		session_close(old);
	return r;
}

static int renew_failure(int r)
{
	switch (r) {
	case -ENOENT:
	case -ECONNREFUSED:
	case -ENOTCONN:
		return tl_fail(-ENOTCONN,
			       "the connection to the daemon is gone, and there is no new one: %s",
			       tl_failure_text());
	default:
		return r;
	}
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
				       client->address);
	}
	return 0;
}

int client_renew(struct tl_client *client, struct session *old, int64_t deadline)
{
	int r;

	if (fork_exiting())
		return tl_fail(-ENOTCONN, "the process is ending");
	pthread_mutex_lock(&client->mutex);
	r = wait_renewed_locked(client, old, deadline);
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
	return renew_failure(r);
}

int client_enter(struct tl_client *client, bool connected, int64_t deadline, struct use *use)
{
	for (unsigned renewals = 0; renewals <= RENEWALS_MAX; renewals++) {
		struct session *s = atomic_load_explicit(&client->session, memory_order_acquire);
		int r;

		if (s && users_enter(&s->users)) {
			use->session = s;
			if (atomic_load_explicit(&s->pinned, memory_order_relaxed))
				fork_unpin(s);
			if (session_served(s) && !(connected && atomic_load(&s->lost)))
				return 0;
			client_leave(use);
		}
		if (renewals && deadline_passed(deadline))
			break;
		r = client_renew(client, s, deadline);
		if (r)
			return r;
	}
	tl_fail(-ENOTCONN, "the daemon at %s ends every connection", client->address);
	return -ENOTCONN;
}

int client_request(struct tl_client *client, void *message, unsigned want, const char *what,
		   struct conn_message *answer)
{
	for (unsigned attempt = 0;; attempt++) {
		int64_t deadline = client_deadline(client);
		struct use use;
		int r;

		r = client_enter(client, true, deadline, &use);
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
				       client->address);
	}
}

/* ---- tl_connect, tl_close ---- */

static int client_configure(struct tl_client *client, const tl_connect_options *options)
{
	tl_connect_options o = { .size = sizeof(o) };
	int r;

	if (options) {
		r = client_options(&o, sizeof(o), options, sizeof(o), "tl_connect_options");
		if (r)
			return r;
	}
	if (o.flags & ~(uint32_t)TL_CONNECT_AUTOSTART)
		return tl_fail(-EINVAL, "tl_connect_options.flags is %#x; %#x is known", o.flags,
			       TL_CONNECT_AUTOSTART);
	if (o.reserved)
		return tl_fail(-EINVAL, "tl_connect_options.reserved is %u, not 0", o.reserved);
	client->flags = o.flags;
	client->timeout_ns = o.timeout_ns ? o.timeout_ns : CLIENT_TIMEOUT_DEFAULT_S * NS_PER_SEC;
	return address_find(client->address, sizeof(client->address), o.address);
}

TL_API int tl_connect(const tl_connect_options *options, tl_client **out)
{
	struct tl_client *client;
	int r;

	if (!out)
		return tl_fail(-EINVAL, "tl_connect: out is NULL");
	pthread_once(&debug_once, debug_init);
	client = client_alloc();
	if (!client)
		return tl_fail(-ENOMEM, "no memory for a client");
	r = client_configure(client, options);
	if (!r)
		r = fork_add_client(client);
	if (!r) {
		r = make_session(client, client_deadline(client));
		if (r)
			fork_remove_client(client);
	}
	if (r) {
		client_free(client);
		return r;
	}
	*out = client;
	return 0;
}

TL_API int tl_close(tl_client *client)
{
	struct session *s;
	int r = 0;

	if (!client)
		return 0;
	s = atomic_load(&client->session);
	if (s)
		r = cuda_finish(s); /* before it is closed: a fork() meanwhile finds it as usual */
	pthread_mutex_lock(&client->mutex);
	client->closed = true;
	s = atomic_exchange(&client->session, NULL);
	pthread_mutex_unlock(&client->mutex);
	if (s) {
		produce_abort_all(s);
		session_close(s);
	}
	cuda_wake(); /* of sessions that are lost nothing more will be heard */
	client_unref(client);
	return r;
}

/* ---- Requests ---- */

TL_API int tl_delete(tl_client *client, const char *name)
{
	unsigned char bytes[sizeof(struct wire_delete) + TL_NAME_MAX];
	struct wire_delete m = { .header = { .type = WIRE_DELETE } };
	struct conn_message answer;
	size_t len;
	int r;

	if (!client || !name)
		return tl_fail(-EINVAL, "tl_delete: %s is NULL", client ? "name" : "client");
	len = strlen(name);
	r = client_check_name(name, len);
	if (r)
		return r;
	m.header.length = (uint32_t)(sizeof(m) + len);
	m.name_len = (uint16_t)len;
	memcpy(bytes, &m, sizeof(m));
	memcpy(bytes + sizeof(m), name, len);
	return client_request(client, bytes, WIRE_DONE, "deleting", &answer);
}

static bool at_end(const struct conn_message *answer)
{
	return answer->header.type == WIRE_DONE;
}

TL_API int tl_list_clients(tl_client *client,
			   int (*visit)(const tl_client_info *info, void *context), void *context)
{
	struct wire_clients m = { .header = { .type = WIRE_CLIENTS, .length = sizeof(m) } };

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_clients: %s is NULL", client ? "visit" : "client");
	for (;;) {
		struct conn_message answer;
		struct wire_client c;
		tl_client_info info;
		int r;

		r = client_request(client, &m, 0, "listing clients", &answer);
		if (r)
			return r;
		if (at_end(&answer))
			return 0;
		r = answer_expect(&answer, WIRE_CLIENT, "listing clients");
		if (r)
			return r;
		memcpy(&c, answer.bytes, sizeof(c));
		if (c.id <= m.after)
			return tl_fail(-EPROTO, "the daemon told of client %llu after %llu",
				       (unsigned long long)c.id, (unsigned long long)m.after);
		info = (tl_client_info){
			.size = sizeof(info),
			.id = c.id,
			.pid = c.pid,
			.uid = c.uid,
			.gid = c.gid,
			.drafts = c.drafts,
			.leases = c.leases,
			.tensors_held = c.tensors_held,
			.bytes_held = c.bytes_held,
		};
		memcpy(info.label, c.label, sizeof(info.label) - 1);
		m.after = c.id;
		r = visit(&info, context);
		if (r)
			return r;
	}
}

TL_API int tl_list_holdings(tl_client *client, uint64_t client_id,
			    int (*visit)(const tl_holding *holding, void *context), void *context)
{
	struct wire_holdings m = { .header = { .type = WIRE_HOLDINGS, .length = sizeof(m) },
				   .id = client_id };

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_holdings: %s is NULL",
			       client ? "visit" : "client");
	for (;;) {
		struct conn_message answer;
		struct wire_holding h;
		tl_holding holding;
		int r;

		r = client_request(client, &m, 0, "listing what a client holds", &answer);
		if (r)
			return r;
		if (at_end(&answer))
			return 0;
		r = answer_expect(&answer, WIRE_HOLDING, "listing what a client holds");
		if (r)
			return r;
		memcpy(&h, answer.bytes, sizeof(h));
		if (h.slot < m.slot)
			return tl_fail(-EPROTO, "the daemon told of slot %u after %u", h.slot,
				       m.slot);
		holding = (tl_holding){
			.size = sizeof(holding),
			.version = h.version,
			.nbytes = h.nbytes,
			.leases = h.leases,
			.retired = h.retired,
		};
		memcpy(holding.name, wire_tail(answer.bytes, sizeof(h)), h.name_len);
		m.slot = h.slot + 1;
		r = visit(&holding, context);
		if (r)
			return r;
	}
}
