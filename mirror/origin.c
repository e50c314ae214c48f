/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/origin.h"

enum { HOSTS_MAX = 4096 };

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

struct origin *origin_find_or_add(struct import *i, const char *host)
{
	struct origin *o = i->origins;

	while (o && strcmp(o->host, host) != 0)
		o = o->next;
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

void origin_label(const struct origin *o, char label[LABEL_MAX])
{
	snprintf(label, LABEL_MAX, "mirror of %s", o->host);
}

/* Returns the connection in @slot, made first if there is none, or NULL after an error. With the
 * lock, which it gives up meanwhile. */
static tl_client *client_in(struct import *i, tl_client **slot, const char *label)
{
	const tl_connect_options options = { .size = sizeof(options),
					     .address = i->config->socket,
					     .namespace_name = i->rule->name_space,
					     .label = label };
	tl_client *client = NULL;

	if (*slot)
		return *slot;
	pthread_mutex_unlock(&i->lock);
	if (tl_connect(&options, &client))
		client = NULL;
	pthread_mutex_lock(&i->lock);
	if (client && *slot) { /* another thread was faster */
		tl_close(client);
	} else if (client) {
		*slot = client;
	} else if (!*slot) {
		log_warn_limited(&i->failures, "nothing can be published here", "import=%s why=%s",
				 i->rule->name, log_str(tl_last_error()));
	}
	return *slot;
}

tl_client *origin_use(struct import *i, struct origin *o)
{
	char label[LABEL_MAX];
	tl_client *client;

	origin_label(o, label);
	o->uses++;
	client = client_in(i, &o->client, label);
	o->uses -= !client;
	return client;
}

tl_client *import_reader(struct import *i)
{
	return i->serve ? client_in(i, &i->reader, "tensorlease-mirror") : NULL;
}

void origin_compare(struct import *i, struct origin *o, int64_t at_ns)
{
	if (o->compare_ns > at_ns)
		o->compare_ns = at_ns;
	pthread_cond_signal(&i->due);
}

void origin_failed(struct import *i, struct origin *o)
{
	origin_compare(i, o, now_mono_ns() + o->retry_ns);
	if (!o->failed && o->retry_ns < COMPARE_NS)
		o->retry_ns *= 2;
	o->failed = true;
}

void origin_count(struct origin *o, int error)
{
	switch (error) {
	case -EEXIST: /* counted with each name */
		return;
	case -ENOSPC:
	case -EDQUOT:
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
