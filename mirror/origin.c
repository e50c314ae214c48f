/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/admin.h>

#include "mirror/origin.h"

#define LABEL "mirror of "

enum { HOSTS_MAX = 4096 };

/* Connections of all imports to the daemon, and their maximum: half of what the daemon accepts, so
 * that other hosts cannot lock out the programs of this one. */
static atomic_uint connections, connections_max = UINT_MAX;

void import_queue(struct import *i, struct replica *r)
{
	replica_enqueue(&i->replicas, r);
	pthread_cond_broadcast(&i->more);
}

bool origin_is_another(struct import *i, const struct replica *r, struct origin *origin)
{
	if (r->origin == origin || !r->origin->up ||
	    (r->known && !r->version && !r->target && !r->busy))
		return false;
	origin->failures[FAILED_CONFLICT]++;
	log_warn_limited(&i->conflicts, "two hosts have one name", "name=%s of=%s refused=%s",
			 log_str(r->name), r->origin->host, origin->host);
	return true;
}

struct origin *origin_find(const struct import *i, const char *host)
{
	struct origin *o = i->origins;

	while (o && strcmp(o->host, host) != 0)
		o = o->next;
	return o;
}

/* Lists names that mean nothing here and belong to hosts that are gone; marks hosts with names. */
static void look_at_owner(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node, **dead = context;

	if (which != postorder && which != leaf)
		return;
	if (r->origin->up || !r->known || r->version || r->busy || r->queued) {
		r->origin->has_names = true;
	} else {
		r->next = *dead;
		*dead = r;
	}
}

static bool is_needed(const struct import *i, const struct origin *o)
{
	return o->up || o->has_names || o->uses || o->client || o->comparing || o->set.busy ||
	       o->set.queued || flows_have(&i->flows, o->host);
}

/* Forgets hosts that are gone and have no names here. */
static void forget_hosts(struct import *i)
{
	struct replica *dead = NULL;
	struct origin **link = &i->origins, *o;

	i->forgot_ns = now_mono_ns();
	for (o = i->origins; o; o = o->next)
		o->has_names = false;
	twalk_r(i->replicas.tree, look_at_owner, &dead);
	replicas_remove(&i->replicas, dead);
	while ((o = *link)) {
		if (is_needed(i, o)) {
			link = &o->next;
			continue;
		}
		*link = o->next;
		i->hosts--;
		free(o->set.target);
		free(o);
	}
}

struct origin *origin_find_or_add(struct import *i, const char *host)
{
	struct origin *o = origin_find(i, host);

	if (!o && i->hosts == HOSTS_MAX && now_mono_ns() - i->forgot_ns > NS_PER_SEC)
		forget_hosts(i);
	if (!o && i->hosts == HOSTS_MAX)
		log_warn_limited(&i->failures, "too many hosts", "import=%s refused=%s known=%u",
				 i->rule->name, log_str(host), i->hosts);
	if (o || i->hosts == HOSTS_MAX)
		return o;
	o = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	i->hosts++;
	strcpy(o->host, host);
	o->set.origin = o;
	o->next = i->origins;
	i->origins = o;
	return o;
}

/* Returns when the daemon was started, or 0. */
static uint64_t look(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	if (tl_get_status(client, &status))
		return 0;
	atomic_store(&connections_max, status.max_clients / 2);
	return status.started_ns;
}

uint64_t origin_look(const struct origin *o)
{
	return o->client ? look(o->client) : 0;
}

void origin_label(const struct origin *o, char label[LABEL_MAX])
{
	snprintf(label, LABEL_MAX, LABEL "%s", o->host);
}

const char *origin_of_label(const char *label)
{
	return strncmp(label, LABEL, strlen(LABEL)) ? NULL : label + strlen(LABEL);
}

/* Returns the connection in @slot, and makes it if need be; or NULL with *@error. With the lock,
 * which it gives up meanwhile. */
static tl_client *client_in(struct import *i, tl_client **slot, const char *label, int *error)
{
	const tl_connect_options options = { .size = sizeof(options),
					     .address = i->config->socket,
					     .namespace_name = i->rule->name_space,
					     .label = label };
	tl_client *client = NULL;

	if (*slot)
		return *slot; /* cppcheck-suppress identicalInnerCondition */
	if (atomic_load(&connections) >= atomic_load(&connections_max)) {
		*error = -EUSERS;
		log_warn_limited(&i->failures,
				 "too many hosts for the daemon here: raise its --max-clients",
				 "import=%s refused=%s connections=%u", i->rule->name,
				 log_str(label), atomic_load(&connections));
		return NULL;
	}
	pthread_mutex_unlock(&i->lock);
	*error = tl_connect(&options, &client);
	pthread_mutex_lock(&i->lock);
	if (client && *slot) { /* another thread was faster */
		tl_close(client);
	} else if (client) {
		*slot = client;
		atomic_fetch_add(&connections, 1);
		look(client);
	} else if (!*slot) {
		log_warn_limited(&i->failures, "nothing can be published here",
				 "import=%s as=%s why=%s", i->rule->name, log_str(label),
				 log_str(tl_last_error()));
	}
	return *slot;
}

tl_client *origin_use(struct import *i, struct origin *o)
{
	char label[LABEL_MAX];
	tl_client *client;
	int error = 0;

	origin_label(o, label);
	o->uses++;
	client = client_in(i, &o->client, label, &error);
	o->uses -= !client;
	if (!client)
		import_count(i, o, error, tl_last_error());
	else if (!o->started_ns)
		o->started_ns = look(client);
	return client;
}

tl_client *import_reader(struct import *i)
{
	int error;

	return i->serve ? client_in(i, &i->reader, "tensorlease-mirror", &error) : NULL;
}

void import_disconnect(tl_client **slot)
{
	if (!*slot)
		return;
	tl_close(*slot);
	*slot = NULL;
	atomic_fetch_sub(&connections, 1);
}

void origin_compare(struct import *i, struct origin *o, int64_t at_ns)
{
	if (o->compare_ns > at_ns)
		o->compare_ns = at_ns;
	pthread_cond_signal(&i->due);
}

void origin_failed(struct import *i, struct origin *o)
{
	/* Jitter, since many hosts may have failed at the same origin at once. */
	origin_compare(i, o, now_mono_ns() + o->retry_ns * (50 + rand() % 51) / 100);
	if (!o->failed && o->retry_ns < COMPARE_NS)
		o->retry_ns *= 2;
	o->failed = true;
}

void import_count(struct import *i, struct origin *o, int error, const char *why)
{
	snprintf(o->why, sizeof(o->why), "%s", why);
	for (char *at = o->why; *at; at++) {
		if (iscntrl((unsigned char)*at)) /* it is shown on terminals */
			*at = '?';
	}
	if (error == -ECONNABORTED)
		atomic_store(&i->over, true);
	switch (error) {
	case -EEXIST: /* already counted for each name */
		return;
	case -ENOSPC:
	case -EDQUOT:
	case -EUSERS:
		o->failures[FAILED_SPACE]++;
		return;
	case -EHOSTUNREACH:
		o->failures[FAILED_UNREACHABLE]++;
		return;
	case -EBADMSG:
	case -EPROTO:
		o->failures[FAILED_DAMAGED]++;
		return;
	default:
		o->failures[FAILED_OTHER]++;
	}
}
