/* SPDX-License-Identifier: Apache-2.0 */
/* Clients: connecting, closing, and the functions that make one request each. */
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "client/api/client.h"
#include "client/checks.h"
#include "client/connection/address.h"
#include "client/connection/call.h"
#include "client/connection/process.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/gpu.h"
#include "client/memory/memory_ops.h"
#include "client/publish/draft.h"
#include "client/publish/ring.h"
#include "client/read/lookup.h"
#include "client/read/watch.h"
#include "proto/conn.h"
#include "tensor/limits.h"
#include "util/clock.h"

/* The public header includes none of ours, so it repeats the limits of the protocol. */
static_assert(TL_NAME_MAX == TENSOR_NAME_MAX, "one limit");
static_assert(TL_NDIM_MAX == TENSOR_NDIM_MAX, "one limit");
static_assert(TL_METADATA_MAX == TENSOR_META_MAX, "one limit");
static_assert(TL_ALIGNMENT == TENSOR_ALIGNMENT, "one alignment");
static_assert(TL_TTL_MAX == TENSOR_TTL_MAX, "one limit");
static_assert((int)TL_LIFETIME_OWNER_BOUND == (int)WIRE_LIFETIME_OWNER_BOUND &&
		      (int)TL_LIFETIME_EVICTABLE == (int)WIRE_LIFETIME_EVICTABLE,
	      "the same bits");

TL_API const char *tl_version(void)
{
	return TENSORLEASE_VERSION;
}

static pthread_once_t first_client = PTHREAD_ONCE_INIT;

static void before_first_client(void)
{
	static const struct memory_kind *const kinds[MEMORY_KINDS] = {
		[KIND_SHARED] = &shared_kind,
		[KIND_DEVICE] = &cuda_kind,
	};

	conn_debug_init("client");
	process_lock(); /* no fork() is under way, which has taken locks of all kinds or none */
	kinds_register(kinds);
	process_unlock();
}

int library_prepare(void)
{
	tl_failure_prepare();
	pthread_once(&first_client, before_first_client);
	return fork_prepare();
}

TL_API const char *tl_last_error(void)
{
	return tl_failure_text();
}

TL_API uint32_t tl_last_cause(uint32_t *id)
{
	uint32_t ignored;

	return tl_failure_cause(id ? id : &ignored);
}

/* ---- tl_connect, tl_close ---- */

/* Says what the daemon is told that we are called. A program may be called anything; what was
 * chosen has to fit. */
static int label_find(char label[WIRE_LABEL_MAX], const char *given)
{
	const char *from = given ? "tl_connect_options.label" : "$TENSORLEASE_LABEL";
	const char *text = given ? given : secure_getenv("TENSORLEASE_LABEL");
	bool chosen = text && *text;

	if (!chosen)
		text = program_invocation_short_name;
	if (chosen && strlen(text) >= WIRE_LABEL_MAX)
		return tl_fail(-EINVAL, "%s has %zu bytes, and %d at most are allowed: '%.64s'",
			       from, strlen(text), WIRE_LABEL_MAX - 1, text);
	strncpy(label, text, WIRE_LABEL_MAX - 1);
	for (char *c = label; *c; c++) {
		if ((unsigned char)*c >= 0x20 && *c != 0x7f)
			continue;
		if (chosen)
			return tl_fail(-EINVAL, "%s has a control character", from);
		*c = '?';
	}
	return 0;
}

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
	r = address_find(&client->address, o.address, o.namespace_name);
	return r ? r : label_find(client->address.label, o.label);
}

TL_API int tl_connect(const tl_connect_options *options, tl_client **out)
{
	struct tl_client *client;
	int r;

	if (!out)
		return tl_fail(-EINVAL, "tl_connect: out is NULL");
	r = library_prepare();
	if (r)
		return r;
	client = client_new();
	if (!client)
		return tl_fail(-ENOMEM, "no memory for a client");
	r = client_configure(client, options);
	if (!r)
		r = client_connect(client);
	if (r) {
		client_free(client);
		return r;
	}
	*out = client;
	return 0;
}

/* What is bound to the connection must not wait for leases, which keep it, nor for the GPU, whose
 * memory is closed before the connection is. */
static void unbind(struct session *s)
{
	const struct wire_plain m = { .header = { .type = WIRE_UNBIND, .length = sizeof(m) } };

	if (!session_lost(s) && (use_count_any(&s->users) || s->of_kind[KIND_DEVICE]))
		session_post(s, &m);
}

TL_API int tl_close(tl_client *client)
{
	struct session *s;
	int r = 0;

	if (!client)
		return 0;
	s = atomic_load(&client->session);
	if (s && session_usable(s))
		return 0; /* in a child that was not announced: all of it is the parent's */
	watches_close(client);
	below_forget(client);
	if (s)
		r = kinds_session_finish(s); /* first, so that a fork() meanwhile finds the session
						as usual */
	s = client_close(client);
	if (s) {
		drafts_close(s);
		rings_close(s);
		unbind(s);
		session_close(s);
	}
	kinds_wake(); /* ended sessions will hear nothing more */
	client_unref(client);
	return r;
}

/* ---- Requests ---- */

/* What a name means. Its tensor's ref changes with each one that a producer publishes to the name's
 * ring without the daemon; the ring's ref stays until the ring ends, by a deletion among others. */
struct meaning {
	uint64_t tensor; /* 0: nothing */
	uint64_t ring;	 /* 0: the name has none */
};

/* False: it cannot be found out, as on a session that has ended. */
static bool meaning_find(struct session *s, const struct name_key *key, struct meaning *m)
{
	uint64_t current = 0;
	uint32_t name;
	int r;

	while ((r = lookup_find(s, key, 0, &m->tensor)) == LEASE_E_FORKING)
		process_wait_fork();
	m->ring = 0;
	if (r) {
		m->tensor = 0;
		return r == LEASE_E_NONE;
	}
	name = load_once(&s->catalog.rows[ref_slot(m->tensor)].name);
	if (name < s->catalog.max_names)
		current = atomic_load(&s->catalog.names[name].current);
	if (current & REF_RING)
		m->ring = current;
	lease_release(s, ref_slot(m->tensor));
	return true;
}

static bool meaning_is(const struct meaning *a, const struct meaning *b)
{
	return a->tensor == b->tensor || (a->ring && a->ring == b->ring);
}

struct deleting {
	struct wire_delete fixed;
	char name[TL_NAME_MAX + 1];
	struct name_key key;
	bool known; /* what the name meant before the request: */
	struct meaning before;
	uint64_t instance; /* of the catalog in which it meant that */
	bool asked;	   /* a daemon that has died since may have read the request */
};

/* True if the name no longer means what it meant before the request. If that is not known, a name
 * that means nothing now has been deleted. */
static bool is_other(struct session *s, const struct deleting *d)
{
	struct meaning now;

	if (d->known && !d->before.tensor)
		return false;
	if (d->known && d->instance != s->catalog.instance)
		return true;
	return meaning_find(s, &d->key, &now) &&
	       (d->known ? !meaning_is(&now, &d->before) : !now.tensor);
}

/* The next daemon is asked only if the name still means the same tensor or has the same ring. Else
 * it was deleted, and another may have been published. */
static bool is_deleted(struct session *s, void *message, struct conn_message *answer, void *context)
{
	struct deleting *d = context;

	(void)message;
	d->asked = true;
	if (!is_other(s, d))
		return false;
	answer->header.type = WIRE_DONE;
	return true;
}

static int delete_attempt(struct call *c, const struct use *use, void *context)
{
	struct deleting *d = context;
	struct conn_message answer;
	int r;

	if (d->asked && is_other(use->session, d))
		return call_done(c, use, 0);
	if (!d->asked) {
		d->known = meaning_find(use->session, &d->key, &d->before);
		d->instance = use->session->catalog.instance;
	}
	r = session_call_unless(use->session, &d->fixed, -1, call_deadline(c), &answer, is_deleted,
				d);
	r = call_once(r, "whether '%s' was deleted is not known", d->name);
	if (!r)
		r = answer_expect(&answer, WIRE_DONE, "deleting");
	return call_done(c, use, r);
}

static int delete_version(tl_client *client, const char *name, uint64_t version)
{
	struct deleting d = { .fixed = { .header = { .type = WIRE_DELETE }, .version = version } };
	struct call c = call_begin_request(client);
	size_t len = strlen(name);
	int r = client_check_name(name, len);

	if (r)
		return r;
	d.fixed.header.length = (uint32_t)(sizeof(d.fixed) + len);
	d.fixed.name_len = (uint16_t)len;
	memcpy(d.name, name, len + 1);
	d.key = name_key(d.name, len);
	return call_run(&c, delete_attempt, &d);
}

TL_API int tl_delete(tl_client *client, const char *name)
{
	if (!client || !name)
		return tl_fail(-EINVAL, "tl_delete: %s is NULL", client ? "name" : "client");
	return delete_version(client, name, 0);
}

TL_API int tl_delete_version(tl_client *client, const char *name, uint64_t version)
{
	if (!client || !name)
		return tl_fail(-EINVAL, "tl_delete_version: %s is NULL",
			       client ? "name" : "client");
	if (!version)
		return tl_fail(-EINVAL, "tl_delete_version: version is 0; they count from 1");
	return delete_version(client, name, version);
}
