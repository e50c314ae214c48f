/* SPDX-License-Identifier: Apache-2.0 */
/* Clients: connecting, closing, and the functions that are a request each. */
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "client/arguments.h"
#include "client/error.h"
#include "client/produce/draft.h"
#include "client/session/address.h"
#include "client/session/client.h"
#include "client/session/fork.h"
#include "client/session/kind.h"
#include "client/session/request.h"
#include "proto/conn.h"
#include "tensor/limits.h"
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

static pthread_once_t debug_once = PTHREAD_ONCE_INIT;

static void debug_init(void)
{
	conn_debug_init("client");
}

TL_API const char *tl_last_error(void)
{
	return tl_failure_text();
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
	client = client_new();
	if (!client)
		return tl_fail(-ENOMEM, "no memory for a client");
	r = client_configure(client, options);
	if (!r)
		r = fork_prepare();
	if (!r)
		r = client_connect(client);
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
		r = kinds_session_close(s); /* first: a fork() meanwhile finds it as usual */
	s = client_close(client);
	if (s) {
		drafts_close(s);
		session_close(s);
	}
	kinds_wake(); /* of sessions that are lost nothing more will be heard */
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
