/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <string.h>

#include "mirror/origin.h"
#include "mirror/status.h"
#include "util/clock.h"

static void number(cJSON *to, const char *name, uint64_t value)
{
	cJSON_AddNumberToObject(to, name, (double)value);
}

static void seconds(cJSON *to, const char *name, int64_t ns)
{
	cJSON_AddNumberToObject(to, name, ns > 0 ? (double)ns / NS_PER_SEC : 0);
}

/* Adds a time since 1970, or null if @ns is 0. */
static void moment(cJSON *to, const char *name, uint64_t ns)
{
	if (ns)
		seconds(to, name, (int64_t)ns);
	else
		cJSON_AddNullToObject(to, name);
}

static cJSON *object_in(cJSON *array)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddItemToArray(array, object);
	return object;
}

static cJSON *rule_in(cJSON *array, const struct rule *rule)
{
	cJSON *object = object_in(array);

	cJSON_AddStringToObject(object, "name", rule->name);
	cJSON_AddStringToObject(object, "namespace",
				*rule->name_space ? rule->name_space : "default");
	cJSON_AddStringToObject(object, "prefix", rule->prefix);
	return object;
}

/* ---- what is given ---- */

static uint64_t bytes_of(const struct ticket_view *view)
{
	uint64_t sum = 0;

	for (size_t n = 0; n < view->count; n++)
		sum += view->parts[n].nbytes;
	return sum;
}

struct held {
	const struct given *given;
	uint64_t versions, bytes;
};

static void add_held(const struct ticket_view *view, void *context)
{
	struct held *held = context;

	if (view->given != held->given || !view->held)
		return;
	held->versions++;
	held->bytes += bytes_of(view);
}

static void show_given(cJSON *to, const struct serve *serve, const struct given *given)
{
	const int64_t now = now_mono_ns();
	struct held held = { .given = given };
	struct given copy = { 0 };
	cJSON *importers;

	if (serve) {
		tickets_show(serve_tickets(serve), add_held, &held);
		tickets_given(serve_tickets(serve), given, &copy);
	}
	number(to, "held", held.versions);
	number(to, "held_bytes", held.bytes);
	number(to, "sent_bytes", copy.bytes);
	importers = cJSON_AddArrayToObject(to, "importers");
	for (size_t n = 0; n < copy.count; n++) {
		cJSON *one = object_in(importers);

		cJSON_AddStringToObject(one, "host", copy.importers[n].host);
		seconds(one, "asked_seconds_ago", now - copy.importers[n].asked_ns);
		number(one, "sent_bytes", copy.importers[n].bytes);
	}
	given_deinit(&copy);
}

static void show_export_streams(cJSON *to, const struct serve *serve, const struct given *given)
{
	struct feeds_look look;

	feeds_look(serve_feeds(serve), given, &look);
	number(to, "count", look.streams);
	number(to, "subscribers", look.subscribers);
	number(to, "items", look.given.items);
	number(to, "bytes", look.given.bytes);
	number(to, "held", look.held);
	number(to, "skipped", look.given.skipped);
}

static void show_export(cJSON *to, const struct rule *rule, struct export *e,
			const struct serve *serve)
{
	struct export_look look;

	export_look(e, &look);
	cJSON_AddBoolToObject(to, "daemon", look.is_there);
	number(to, "names", look.names);
	number(to, "bytes", look.bytes);
	number(to, "names_on_gpus", look.on_gpus);
	cJSON_AddBoolToObject(to, "set", rule->is_set);
	moment(to, "moment", look.moment);
	if (rule->streams && serve)
		show_export_streams(cJSON_AddObjectToObject(to, "streams"), serve, look.given);
	show_given(to, serve, look.given);
}

/* ---- what comes ---- */

static void add_late(struct tally *t, const struct replica *r)
{
	const uint64_t told = r->late_version, behind = told > r->version ? told - r->version : 0;

	if (!r->late_ns)
		return;
	t->waiting++;
	if (r->name && behind > t->versions) /* a set has no versions */
		t->versions = behind;
	if (!t->latest || r->late_ns < t->latest->late_ns)
		t->latest = r;
}

static void add_replica(const void *node, VISIT which, void *context)
{
	const struct replica *r = *(struct replica *const *)node;
	struct tally *t = &r->origin->tally;

	(void)context;
	if (which != postorder && which != leaf)
		return;
	t->names += r->known && r->version;
	t->busy += r->busy;
	add_late(t, r);
}

static void show_failures(cJSON *to, const uint64_t failures[FAILURES])
{
	static const char *const names[FAILURES] = { [FAILED_SPACE] = "space",
						     [FAILED_UNREACHABLE] = "unreachable",
						     [FAILED_DAMAGED] = "damaged",
						     [FAILED_CONFLICT] = "conflict",
						     [FAILED_OTHER] = "other" };
	cJSON *object = cJSON_AddObjectToObject(to, "failures");

	for (unsigned n = 0; n < FAILURES; n++)
		number(object, names[n], failures[n]);
}

static void show_flows(cJSON *to, const struct flows *flows, const struct origin *o)
{
	struct flows_look look;

	flows_look(flows, o->host, &look);
	number(to, "count", look.streams);
	number(to, "ended", look.ended);
	number(to, "items", atomic_load(&o->came.items));
	number(to, "bytes", atomic_load(&o->came.bytes));
	number(to, "waiting", look.waiting);
}

static void show_host(cJSON *to, const struct import *i, const struct origin *o)
{
	const struct tally *t = &o->tally;

	cJSON_AddStringToObject(to, "host", o->host);
	cJSON_AddBoolToObject(to, "up", o->up && bus_is_up(i->bus));
	seconds(to, "heard_seconds_ago", now_mono_ns() - o->seen_ns);
	number(to, "names", t->names);
	moment(to, "moment", o->set.committed_ns);
	number(to, "waiting", t->waiting);
	number(to, "lag_versions", t->versions);
	seconds(to, "lag_seconds", t->latest ? now_real_ns() - (int64_t)t->latest->late_ns : 0);
	if (t->latest && t->latest->name)
		cJSON_AddStringToObject(to, "latest", t->latest->name);
	number(to, "transfers", o->set.busy ? 1 : t->busy); /* a set is one transfer */
	number(to, "received_bytes", atomic_load(&o->arrived.bytes));
	show_failures(to, o->failures);
	if (*o->why)
		cJSON_AddStringToObject(to, "failure", o->why);
	number(to, "parents_lost", atomic_load(&o->arrived.lost));
	number(to, "comparisons", o->comparisons);
	if (i->rule->streams)
		show_flows(cJSON_AddObjectToObject(to, "streams"), &i->flows, o);
}

/* Adds how many names programs here have requested, and how many of them are here. */
static void show_requests(cJSON *to, const struct import *i)
{
	uint64_t here = 0;

	for (const struct origin *o = i->origins; o; o = o->next)
		here += o->tally.names;
	number(to, "names", requests_count(i->requests));
	number(to, "here", here);
}

static void show_import(cJSON *to, struct import *i)
{
	cJSON *hosts = cJSON_AddArrayToObject(to, "hosts");

	pthread_mutex_lock(&i->lock);
	for (struct origin *o = i->origins; o; o = o->next)
		o->tally = (struct tally){ 0 };
	twalk_r(i->replicas.tree, add_replica, NULL);
	for (struct origin *o = i->origins; o; o = o->next) {
		add_late(&o->tally, &o->set);
		show_host(object_in(hosts), i, o);
	}
	if (i->requests)
		show_requests(cJSON_AddObjectToObject(to, "requests"), i);
	pthread_mutex_unlock(&i->lock);
	show_given(to, i->serve, &i->given);
}

/* ---- all ---- */

static void show_refused(cJSON *to, const struct serve *serve)
{
	const char *why;
	uint64_t count;

	for (unsigned n = 0; serve && (why = serve_refused(serve, n, &count)); n++)
		number(to, why, count);
}

cJSON *status_make(const struct mirror *m)
{
	cJSON *all = cJSON_CreateObject(), *nats, *exports, *imports;

	cJSON_AddStringToObject(all, "host", m->config.host);
	cJSON_AddStringToObject(all, "version", TENSORLEASE_VERSION);
	seconds(all, "started", m->started_ns);
	nats = cJSON_AddObjectToObject(all, "nats");
	cJSON_AddBoolToObject(nats, "up", bus_is_up(m->bus));
	number(nats, "reconnects", bus_reconnects(m->bus));
	show_refused(cJSON_AddObjectToObject(all, "refused"), m->serve);
	exports = cJSON_AddArrayToObject(all, "exports");
	imports = cJSON_AddArrayToObject(all, "imports");
	for (size_t n = 0; n < m->config.count; n++) {
		const struct rule *rule = &m->config.rules[n];

		if (m->exports[n])
			show_export(rule_in(exports, rule), rule, m->exports[n], m->serve);
		if (m->imports[n])
			show_import(rule_in(imports, rule), m->imports[n]);
	}
	return all;
}

/* ---- the tree of a version ---- */

struct finding {
	const char *name;
	const struct rule *rule;
	uint64_t committed_ns; /* of the newest version so far */
	cJSON *found;
};

static unsigned depth_of(const struct tree *t, unsigned n)
{
	unsigned depth = 0;

	for (; n; n = t->nodes[n].parent)
		depth++;
	return depth;
}

static void show_nodes(cJSON *to, const struct tree *t)
{
	for (unsigned n = 1; n < t->count; n++) {
		const struct node *node = &t->nodes[n];
		const char *parent = t->nodes[node->parent].host;
		cJSON *one;

		if (!config_is_word(node->host, CONFIG_HOST_MAX))
			continue;
		one = object_in(to);
		cJSON_AddStringToObject(one, "host", node->host);
		cJSON_AddStringToObject(one, "parent", parent ? parent : "");
		number(one, "depth", depth_of(t, n));
		cJSON_AddBoolToObject(one, "lost", node->lost);
	}
}

static void find_newest(const struct ticket_view *view, void *context)
{
	struct finding *f = context;
	char version[24];

	if (view->given->rule != f->rule || !view->offered || view->tree->count < 2 ||
	    !view->count || view->parts->committed_ns < f->committed_ns ||
	    (view->is_set ? strncmp(f->name, f->rule->prefix, strlen(f->rule->prefix))
			  : strcmp(f->name, view->parts->name)) != 0)
		return;
	cJSON_Delete(f->found);
	f->committed_ns = view->parts->committed_ns;
	f->found = cJSON_CreateObject();
	cJSON_AddStringToObject(f->found, "export", f->rule->name);
	cJSON_AddBoolToObject(f->found, "set", view->is_set);
	snprintf(version, sizeof(version), "%" PRIu64, view->parts->version);
	if (!view->is_set)
		cJSON_AddStringToObject(f->found, "version", version);
	number(f->found, "bytes", bytes_of(view));
	show_nodes(cJSON_AddArrayToObject(f->found, "hosts"), view->tree);
}

cJSON *status_tree(const struct mirror *m, const char *name)
{
	cJSON *all = cJSON_CreateObject(), *trees = cJSON_AddArrayToObject(all, "trees");

	for (size_t n = 0; m->serve && n < m->config.count; n++) {
		struct finding f = { .name = name, .rule = &m->config.rules[n] };

		if (m->exports[n])
			tickets_show(serve_tickets(m->serve), find_newest, &f);
		if (f.found)
			cJSON_AddItemToArray(trees, f.found);
	}
	return all;
}
