/* SPDX-License-Identifier: Apache-2.0 */
/* Administration: a daemon's status, its users and clients, and disconnecting them. */
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <tensorlease/admin.h>
#include <unistd.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/names.h"
#include "proto/conn.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"

/* Copies the reason. The daemon writes it without a lock, and may be another user's. */
static void reason_read(const struct catalog_header *c, char out[CATALOG_REASON])
{
	uint64_t word;

	for (unsigned i = 0; i < CATALOG_REASON / 8; i++) {
		word = atomic_load(&c->restart_reason[i]);
		memcpy(out + 8 * i, &word, sizeof(word));
	}
	out[CATALOG_REASON - 1] = '\0';
}

TL_API int tl_get_status(tl_client *client, tl_status *status)
{
	const struct catalog_header *c;
	tl_status now = { 0 };
	struct use use;
	int r;

	if (!client || !status)
		return tl_fail(-EINVAL, "tl_get_status: %s is NULL", client ? "status" : "client");
	r = client_result_check(status, sizeof(now), "tl_status");
	if (!r)
		r = call_look(client, &use);
	if (r)
		return r;
	c = use.session->catalog.header;
	memcpy(now.address, client->address.path, sizeof(now.address));
	now.started_ns = load_once(&c->started_ns);
	now.capacity = load_once(&c->capacity);
	now.bytes_used = atomic_load(&c->bytes_used);
	now.bytes_warm = atomic_load(&c->bytes_warm);
	now.bytes_kept = atomic_load(&c->bytes_kept);
	now.longest_turn_ns = atomic_load(&c->longest_turn_ns);
	now.commits = atomic_load(&c->commits);
	now.tensors = atomic_load(&c->tensors);
	now.retired = atomic_load(&c->retired);
	now.drafts = atomic_load(&c->drafts);
	now.segments = atomic_load(&c->segments);
	now.clients = atomic_load(&c->clients);
	now.max_tensors = load_once(&c->max_tensors);
	now.max_clients = load_once(&c->max_clients);
	now.rings = atomic_load(&c->rings);
	now.ring_slots = atomic_load(&c->ring_slots);
	now.retyped = atomic_load(&c->retyped);
	catalog_retyped(&use.session->catalog, now.retyped_name);
	now.daemon_pid = load_once(&c->daemon_pid);
	now.restarts = atomic_load(&c->restarts);
	now.restart_ns = atomic_load(&c->restart_ns);
	static_assert(sizeof(now.restart_reason) == CATALOG_REASON, "reasons fit");
	reason_read(c, now.restart_reason);
	now.keeper = atomic_load(&c->keeper);
	client_leave(&use);
	client_result(status, &now, sizeof(now));
	return 0;
}

/* Reads @size bytes of the file, which is not written any more. NULL: it does not have them, or
 * there is no memory. */
static char *text_of(int fd_peek, size_t size)
{
	char *text = malloc(size + 1);

	for (size_t at = 0; text && at < size;) {
		ssize_t n = pread(fd_peek, text + at, size - at, (off_t)at);

		if (n <= 0) {
			free(text);
			return NULL;
		}
		at += (size_t)n;
	}
	if (text)
		text[size] = '\0';
	return text;
}

TL_API int tl_get_metrics(tl_client *client, char **text)
{
	struct wire_plain m = { .header = { .type = WIRE_METRICS, .length = sizeof(m) } };
	struct wire_metrics_are are;
	struct conn_message answer;
	int r;

	if (!client || !text)
		return tl_fail(-EINVAL, "tl_get_metrics: %s is NULL", client ? "text" : "client");
	r = client_request(client, &m, WIRE_METRICS_ARE, "getting the metrics", &answer);
	if (r)
		return r;
	memcpy(&are, answer.bytes, sizeof(are));
	*text = text_of(answer.fd, are.size);
	fd_close(answer.fd);
	return *text ? 0
		     : tl_fail(-EPROTO,
			       "the daemon's metrics cannot be read: its memory has not "
			       "the %llu bytes that it says",
			       (unsigned long long)are.size);
}

/* Returns 1 if another daemon is there, which may have begun without the last one's tensors. 0: not
 * yet. */
static int is_restarted(tl_client *client, const tl_status *before)
{
	char reason[CATALOG_REASON];
	struct use use;
	bool former;

	if (call_look(client, &use))
		return 0;
	if (atomic_load(&use.session->catalog.header->restarts) == before->restarts) {
		client_leave(&use);
		return 0;
	}
	former = atomic_load(&use.session->catalog.header->former_program);
	reason_read(use.session->catalog.header, reason);
	client_leave(&use);
	if (!former)
		return 1;
	return tl_fail(-ENOEXEC, "the daemon at %s was restarted with its former program: %s",
		       client->address.path, reason);
}

TL_API int tl_restart(tl_client *client)
{
	struct wire_restart m = { .header = { .type = WIRE_RESTART, .length = sizeof(m) } };
	tl_status before = { .size = sizeof(before) };
	struct conn_message answer;
	int64_t deadline;
	int r = tl_get_status(client, &before);

	if (r)
		return r;
	deadline = client_deadline(client);
	m.restarts = before.restarts;
	r = client_request(client, &m, WIRE_DONE, "restarting the daemon", &answer);
	if (r)
		return r;
	while (!(r = is_restarted(client, &before))) {
		if (deadline_passed(deadline))
			return tl_fail(-ETIMEDOUT,
				       "the daemon at %s was asked for a restart, and none came in "
				       "time; its log may say why",
				       client->address.path);
		nap(NS_PER_MS);
	}
	return r < 0 ? r : 0;
}

static bool at_end(const struct conn_message *answer)
{
	return answer->header.type == WIRE_DONE;
}

TL_API int tl_list_clients(tl_client *client,
			   int (*visit)(const tl_client_info *info, void *context), void *context)
{
	struct wire_clients m = { .header = { .type = WIRE_CLIENTS, .length = sizeof(m) } };
	struct client_list list;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_clients: %s is NULL", client ? "visit" : "client");
	list = client_list(client, LIST_CLIENTS);
	for (;;) {
		struct conn_message answer;
		struct wire_client c;
		tl_client_info info;
		int r;

		r = client_request_next(client, &list, &m, "listing clients", &answer);
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
			.since_ns = c.since_ns,
		};
		memcpy(info.label, c.label, sizeof(info.label) - 1);
		m.after = c.id;
		r = visit(&info, context);
		if (r)
			return r;
	}
}

static tl_user_info user_info(const struct wire_user *u)
{
	tl_user_info info = { .size = sizeof(info), .uid = u->uid, .busy_ns = u->busy_ns };

	static_assert((int)TL_SHARES == (int)WIRE_SHARES, "the protocol has a number for each");
	for (unsigned i = 0; i < TL_SHARES; i++)
		info.shares[i] = (tl_share){ .used = u->used[i],
					     .max = u->max[i],
					     .used_by_all = u->used_by_all[i],
					     .capacity = u->capacity[i] };
	return info;
}

/* Asks for the next user. Returns 0 with *@u, 1 if there is none, or a negative errno. */
static int user_request(tl_client *client, struct client_list *list, struct wire_users *m,
			struct wire_user *u)
{
	struct conn_message answer;
	int r = client_request_next(client, list, m, "listing users", &answer);

	if (r || at_end(&answer))
		return r ? r : 1;
	r = answer_expect(&answer, WIRE_USER, "listing users");
	if (r)
		return r;
	memcpy(u, answer.bytes, sizeof(*u));
	if (m->flags & WIRE_USERS_EXACT && m->from == UINT32_MAX)
		return 0; /* we do not know our own number there */
	if (u->uid < m->from || (m->flags & WIRE_USERS_EXACT && u->uid != m->from))
		return tl_fail(-EPROTO, "the daemon told of user %u where %llu was asked for",
			       u->uid, (unsigned long long)m->from);
	return 0;
}

TL_API int tl_list_users(tl_client *client, int (*visit)(const tl_user_info *info, void *context),
			 void *context)
{
	struct wire_users m = { .header = { .type = WIRE_USERS, .length = sizeof(m) } };
	struct client_list list;
	struct wire_user u;
	tl_user_info info;
	int r;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_users: %s is NULL", client ? "visit" : "client");
	list = client_list(client, LIST_USERS);
	for (;;) {
		r = user_request(client, &list, &m, &u);
		if (r)
			return r < 0 ? r : 0;
		info = user_info(&u);
		m.from = (uint64_t)u.uid + 1;
		r = visit(&info, context);
		if (r)
			return r;
	}
}

TL_API int tl_get_user(tl_client *client, uint32_t uid, tl_user_info *info)
{
	struct wire_users m = { .header = { .type = WIRE_USERS, .length = sizeof(m) },
				.from = uid,
				.flags = WIRE_USERS_EXACT };
	struct client_list list;
	tl_user_info found;
	struct wire_user u;
	int r;

	if (!client || !info)
		return tl_fail(-EINVAL, "tl_get_user: %s is NULL", client ? "info" : "client");
	list = client_list(client, LIST_USERS);
	r = client_result_check(info, sizeof(found), "tl_user_info");
	if (!r)
		r = user_request(client, &list, &m, &u);
	if (r == 1)
		return tl_fail(-EACCES,
			       "only root, the daemon's user and user %u may see what "
			       "user %u has",
			       uid, uid);
	if (r)
		return r;
	found = user_info(&u);
	client_result(info, &found, sizeof(found));
	return 0;
}

TL_API int tl_list_holdings(tl_client *client, uint64_t client_id,
			    int (*visit)(const tl_holding *holding, void *context), void *context)
{
	struct wire_holdings m = { .header = { .type = WIRE_HOLDINGS, .length = sizeof(m) },
				   .id = client_id };
	struct client_list list;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_holdings: %s is NULL",
			       client ? "visit" : "client");
	list = client_list(client, LIST_TENSORS);
	for (;;) {
		struct conn_message answer;
		struct wire_holding h;
		tl_holding holding;
		int r;

		r = client_request_next(client, &list, &m, "listing what a client holds", &answer);
		if (r)
			return r;
		if (at_end(&answer))
			return 0;
		r = answer_expect(&answer, WIRE_HOLDING, "listing what a client holds");
		if (r)
			return r;
		memcpy(&h, answer.bytes, sizeof(h));
		if (h.slot < m.slot || h.slot >= CATALOG_MAX_TENSORS)
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

/* Visits the tensors in @held that are called @only (NULL: all). The names that mean nothing any
 * more have no readers. */
static int visit_held(struct session *s, const struct wire_held *held, const char *only,
		      int (*visit)(const tl_reader *reader, void *context), void *context)
{
	struct name_entry entry;
	tl_reader reader;
	int r = 0;

	for (uint32_t i = 0; !r && i < held->count; i++) {
		reader = (tl_reader){ .size = sizeof(reader), .leases = held->leases[i] };
		catalog_identity(&s->catalog, held->clients[i], &reader.client);
		if (held->names[i] >= s->catalog.max_names)
			return tl_fail(-EPROTO, "the daemon told of name %u of %u", held->names[i],
				       s->catalog.max_names);
		if (!reader.client.id || reader.client.gone)
			continue;
		r = names_list_at(s, held->names[i], &entry);
		if (r)
			r = r < 0 ? r : 0;
		else if (!only || !strcmp(only, entry.info.name)) {
			memcpy(reader.name, entry.info.name, sizeof(reader.name));
			r = visit(&reader, context);
		}
	}
	return r;
}

TL_API int tl_list_readers(tl_client *client, const char *name,
			   int (*visit)(const tl_reader *reader, void *context), void *context)
{
	struct wire_readers m = { .header = { .type = WIRE_READERS, .length = sizeof(m) } };
	cleanup_(cancel_allow) int cancel = cancel_forbid(); /* @visit must return */
	struct conn_message answer;
	struct client_list list;
	struct wire_held held;
	struct use use;
	int r;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_readers: %s is NULL", client ? "visit" : "client");
	r = name ? client_check_name(name, strlen(name)) : 0;
	for (list = client_list(client, LIST_HELD); !r; m.id = held.id, m.slot = held.slot) {
		r = client_request_next(client, &list, &m, "listing readers", &answer);
		if (r || at_end(&answer))
			break;
		r = answer_expect(&answer, WIRE_HELD, "listing readers");
		if (r)
			break;
		memcpy(&held, answer.bytes, sizeof(held));
		if (held.id < m.id || (held.id == m.id && held.slot <= m.slot))
			return tl_fail(-EPROTO,
				       "the daemon told of client %llu, slot %u after %llu, %u",
				       (unsigned long long)held.id, held.slot,
				       (unsigned long long)m.id, m.slot);
		r = call_look(client, &use);
		if (r)
			break;
		r = visit_held(use.session, &held, name, visit, context);
		client_leave(&use);
	}
	return r;
}

/* Disconnects the first client of @uid (UINT32_MAX: of any user) with an id above *@after and up to
 * *@until. Returns 1, and its id in *@after; 0 if there is none; or a negative errno. */
static int kick_next(tl_client *client, struct client_list *list, uint32_t uid, uint64_t *after,
		     uint64_t *until)
{
	struct wire_kick m = { .header = { .type = WIRE_KICK, .length = sizeof(m) },
			       .after = *after,
			       .until = *until,
			       .uid = uid };
	struct conn_message answer;
	struct wire_kicked kicked;
	int r = client_request_next(client, list, &m, "disconnecting clients", &answer);

	if (r || at_end(&answer))
		return r;
	r = answer_expect(&answer, WIRE_KICKED, "disconnecting clients");
	if (r)
		return r;
	memcpy(&kicked, answer.bytes, sizeof(kicked));
	if (kicked.id <= *after || kicked.id > *until)
		return tl_fail(-EPROTO,
			       "the daemon disconnected client %llu, not one of %llu to %llu",
			       (unsigned long long)kicked.id, (unsigned long long)*after + 1,
			       (unsigned long long)*until);
	*after = kicked.id;
	if (kicked.newest < *until)
		*until = kicked.newest; /* clients that connect from now on are not meant */
	return 1;
}

TL_API int tl_kick(tl_client *client, uint64_t client_id)
{
	uint64_t after = client_id - 1, until = client_id;
	struct client_list list;
	int r;

	if (!client)
		return tl_fail(-EINVAL, "tl_kick: client is NULL");
	list = client_list(client, LIST_CLIENTS);
	r = client_id ? kick_next(client, &list, UINT32_MAX, &after, &until) : 0;
	if (r)
		return r < 0 ? r : 0;
	return tl_fail(-ENOENT, "no other client with the id %llu is connected",
		       (unsigned long long)client_id);
}

TL_API int tl_kick_user(tl_client *client, uint32_t uid, uint32_t *count)
{
	uint64_t after = 0, until = UINT64_MAX;
	struct client_list list;
	uint32_t n = 0;
	int r;

	if (!client || !count)
		return tl_fail(-EINVAL, "tl_kick_user: %s is NULL", client ? "count" : "client");
	if (uid == UINT32_MAX)
		return tl_fail(-EINVAL, "tl_kick_user: %u is no user", uid);
	list = client_list(client, LIST_CLIENTS);
	while ((r = kick_next(client, &list, uid, &after, &until)) > 0)
		n++;
	if (!r && !n)
		return tl_fail(-ENOENT, "user %u has no other client", uid);
	if (!r)
		*count = n;
	return r;
}
