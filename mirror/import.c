/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each name has one transfer at a time. What is announced meanwhile waits, the newest only. A host
 * is compared with when it comes, and then every half minute, so a lost message costs that at most.
 */
#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/admin.h>

#include "mirror/import.h"
#include "mirror/replica.h"
#include "mirror/set.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define COMPARE_NS (30 * NS_PER_SEC)
#define RETRY_NS NS_PER_SEC	   /* at first; it doubles up to COMPARE_NS */
#define SILENT_NS (7 * NS_PER_SEC) /* of a host that sends a beat every 2 s */

enum { WORKERS = 4, SUBJECT_MAX = 2 * CONFIG_WORD_MAX + 16, LABEL_MAX = 32, HOSTS_MAX = 4096 };

/* A host whose names come here. */
struct origin {
	struct origin *next;
	char host[CONFIG_HOST_MAX + 1];
	tl_client *client; /* NULL while it is silent: watchers here see that its producer is gone
			    */
	unsigned uses;	   /* of the client */
	bool up;
	bool comparing;
	uint64_t life;
	uint64_t started_ns;	     /* of the daemon here, at the last look */
	int64_t seen_ns, compare_ns; /* when it said something; when to compare */
	int64_t retry_ns;	     /* after which a failure is tried again */
	bool failed;		     /* something, since the last comparison began */
	struct replica set;	     /* what it offers, if it offers a set */
};

struct import {
	const struct config *config;
	const struct rule *rule;
	struct bus *bus;
	struct serve *serve; /* NULL: nothing is relayed */
	atomic_bool stop;
	pthread_mutex_t lock; /* for all that follows */
	pthread_cond_t more;
	struct origin *origins;
	unsigned hosts;
	tl_client *reader; /* for what is relayed; NULL: there is none yet */
	struct replicas replicas;
	pthread_t threads[WORKERS + 1];
	unsigned running;
	struct log_limit conflicts, failures;
};

/* ---- notes ---- */

static void queue(struct import *i, struct replica *r)
{
	replica_enqueue(&i->replicas, r);
	pthread_cond_broadcast(&i->more);
}

/* A name has one origin, until that is gone. */
static bool is_of_another(struct import *i, const struct replica *r, const struct origin *origin)
{
	if (r->origin == origin || !r->origin->up ||
	    (r->known && !r->version && !r->target && !r->busy))
		return false;
	log_warn_limited(&i->conflicts, "two hosts have one name", "name=%s of=%s refused=%s",
			 log_str(r->name), r->origin->host, origin->host);
	return true;
}

static void take_note(struct import *i, struct origin *origin, const struct message *m,
		      const struct note *note)
{
	struct replica *r = replica_find(&i->replicas, note->name);
	bool done;

	if (note->gone && (r ? r->origin != origin : !origin->comparing))
		return;
	if (!r)
		r = replica_add(&i->replicas, origin, note->name, i->rule->prefix);
	if (!r || is_of_another(i, r, origin))
		return;
	if (r->origin != origin) { /* its numbers are others */
		r->origin = origin;
		r->known = false;
		replica_untell(r);
	}
	if (!r->told_gone || !replica_is_old(r, note))
		r->told_ns = now_mono_ns(); /* the name is there */
	if (replica_is_old(r, note))
		return;
	done = replica_is_done(r, note);
	replica_tell(r, note);
	if (done)
		return;
	free(r->target);
	r->target = target_new(m->url, note);
	if (r->target)
		queue(i, r);
}

/* ---- origins ---- */

static struct origin *origin_find(struct import *i, const char *host)
{
	struct origin *o = i->origins;

	while (o && strcmp(o->host, host) != 0)
		o = o->next;
	return o;
}

/* Returns who has sent to a subject, tl1.RULE.WHAT.HOST, which the server permits to that host
 * alone; or NULL. */
static struct origin *origin_of(struct import *i, const char *subject)
{
	const char *dot = strrchr(subject, '.'), *host = dot ? dot + 1 : subject;
	struct origin *o;

	if (!config_is_word(host, CONFIG_HOST_MAX))
		return NULL;
	o = origin_find(i, host);
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

struct of_origin {
	struct import *import;
	struct origin *origin;
	int64_t before_ns; /* those of which nothing was told since */
	struct replica *dead;
};

static void untell_all(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	const struct of_origin *of = context;

	if ((which == postorder || which == leaf) && r->origin == of->origin)
		replica_untell(r);
}

/* It has said something, so it is there. */
static void origin_seen(struct import *i, struct origin *o, uint64_t life)
{
	o->seen_ns = now_mono_ns();
	if (!o->up)
		log_info("a host is there", "import=%s host=%s", i->rule->name, o->host);
	if (!o->up || (life && life != o->life)) {
		twalk_r(i->replicas.tree, untell_all, &(struct of_origin){ .origin = o });
		replica_untell(&o->set);
		o->compare_ns = 0;
		o->retry_ns = RETRY_NS;
	}
	if (life)
		o->life = life;
	o->up = true;
}

static void label_of(const struct origin *o, char label[LABEL_MAX])
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

/* Returns the connection under which an origin's names are published. origin's uses is to be
 * counted down, if it is not NULL. With the lock, which it gives up meanwhile. */
static tl_client *origin_use(struct import *i, struct origin *o)
{
	char label[LABEL_MAX];
	tl_client *client;

	label_of(o, label);
	o->uses++;
	client = client_in(i, &o->client, label);
	o->uses -= !client;
	return client;
}

/* Whatever was told before, the name is to go. */
static void queue_gone(struct import *i, struct replica *r)
{
	free(r->target);
	r->target = calloc(1, sizeof(*r->target));
	replica_untell(r);
	if (!r->target)
		return;
	r->target->note.gone = true;
	queue(i, r);
}

/* Names that are not in the list are gone there. Those that are gone here too are forgotten. */
static void queue_if_gone(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	struct of_origin *of = context;

	if ((which != postorder && which != leaf) || r->origin != of->origin ||
	    r->told_ns >= of->before_ns || r->busy || r->queued)
		return;
	if (!r->known || r->version) {
		queue_gone(of->import, r);
	} else {
		r->next = of->dead;
		of->dead = r;
	}
}

static void gone_since(struct import *i, struct origin *o, int64_t before_ns)
{
	struct of_origin of = { .import = i, .origin = o, .before_ns = before_ns };

	twalk_r(i->replicas.tree, queue_if_gone, &of);
	replicas_remove(&i->replicas, of.dead);
}

static void origin_lost(struct import *i, struct origin *o)
{
	log_warn("a host is gone", "import=%s host=%s its-names=%s", i->rule->name, o->host,
		 i->rule->deletes ? "deleted" : "kept");
	o->up = false;
	if (i->rule->deletes)
		gone_since(i, o, INT64_MAX);
}

/* Something of it failed: its names are to be compared again before long. */
static void origin_failed(struct origin *o)
{
	const int64_t again = now_mono_ns() + o->retry_ns;

	if (o->compare_ns > again)
		o->compare_ns = again;
	if (!o->failed && o->retry_ns < COMPARE_NS)
		o->retry_ns *= 2;
	o->failed = true;
}

/* ---- messages ---- */

struct taking {
	struct import *import;
	struct origin *origin;
	bool is_page;
	char next[TL_NAME_MAX + 1]; /* of a page */
	int r;
};

static void show_note(const struct message *m, const struct note *note, void *context)
{
	struct taking *t = context;

	take_note(t->import, t->origin, m, note);
}

/* What this host exports does not come here. */
static bool is_own(struct import *i, const char *subject, const struct message *m)
{
	const char *dot = strrchr(subject, '.');

	if (!dot || strcmp(dot + 1, i->config->host) != 0)
		return false;
	if (!i->serve || strcmp(m->url, serve_url(i->serve)) != 0)
		log_warn_limited(&i->conflicts,
				 "two hosts have one name: write host = NAME into [mirror]",
				 "host=%s of=%s", i->config->host, log_str(m->url));
	return true;
}

/* The newest moment only. */
static void take_set(struct import *i, struct origin *o, const struct message *m, const void *data,
		     size_t size)
{
	struct target *t;

	if (m->moment <= o->set.told_version)
		return;
	t = target_of_set(m, data, size);
	if (!t)
		return;
	o->set.told_version = m->moment;
	free(o->set.target);
	o->set.target = t;
	queue(i, &o->set);
}

static int take_data(struct taking *t, const char *subject, const void *data, size_t size)
{
	struct message m;
	int r = message_read(&m, data, size);

	if (!r && !fetch_is_url(t->import->config, m.url))
		r = -EINVAL;
	if (!r) {
		t->origin = is_own(t->import, subject, &m) ? NULL : origin_of(t->import, subject);
		r = t->origin ? 0 : -EPERM;
	}
	if (!r) {
		origin_seen(t->import, t->origin, m.life);
		if (m.next && strlen(m.next) < sizeof(t->next))
			strcpy(t->next, m.next);
		if (m.is_set)
			take_set(t->import, t->origin, &m, data, size);
		else
			message_notes(&m, show_note, t);
	}
	t->is_page = !r && m.next;
	message_deinit(&m);
	return r;
}

static void take_message(struct taking *t, const char *subject, const void *data, size_t size)
{
	struct import *i = t->import;

	pthread_mutex_lock(&i->lock);
	t->r = atomic_load(&i->stop) ? -ECANCELED : take_data(t, subject, data, size);
	if (t->r == -EINVAL && size)
		log_warn_limited(&i->failures, "a message has another form", "subject=%s",
				 log_str(subject));
	pthread_mutex_unlock(&i->lock);
}

static void on_message(void *context, const char *subject, const char *reply, const void *data,
		       size_t size)
{
	struct taking t = { .import = context };

	(void)reply;
	take_message(&t, subject, data, size);
}

/* ---- comparing ---- */

/* Finds what an earlier process has published for that host, and notes what is still here. */
static int look_at(const tl_info *info, void *context)
{
	const struct of_origin *of = context;
	const size_t len = strlen(of->import->rule->prefix);
	char label[LABEL_MAX];
	struct replica *r;

	label_of(of->origin, label);
	if (strcmp(info->publisher.label, label) != 0 ||
	    strncmp(info->name, of->import->rule->prefix, len) != 0)
		return 0;
	pthread_mutex_lock(&of->import->lock);
	r = replica_find(&of->import->replicas, info->name + len);
	if (!r)
		r = replica_add(&of->import->replicas, of->origin, info->name + len,
				of->import->rule->prefix);
	if (r)
		r->seen = true;
	pthread_mutex_unlock(&of->import->lock);
	return 0;
}

/* What was deleted here, evicted or lost with the daemon is to come again. */
static void forget_unseen(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	const struct of_origin *of = context;

	if ((which != postorder && which != leaf) || r->origin != of->origin)
		return;
	if (!r->seen && r->known && r->version && !r->busy && !r->target) {
		r->known = false;
		replica_untell(r);
	}
	r->seen = false;
}

/* With the lock, which it gives up meanwhile. Returns 0 or a negative errno. */
static int look_here(struct import *i, struct origin *o)
{
	struct of_origin of = { .import = i, .origin = o };
	tl_client *client = origin_use(i, o);
	int r;

	if (!client)
		return -ENOTCONN;
	pthread_mutex_unlock(&i->lock);
	r = tl_list(client, i->rule->prefix, look_at, &of);
	pthread_mutex_lock(&i->lock);
	o->uses--;
	if (!r)
		twalk_r(i->replicas.tree, forget_unseen, &of);
	return r;
}

static void on_page(void *context, const char *subject, const char *reply, const void *data,
		    size_t size)
{
	(void)reply;
	take_message(context, subject, data, size);
}

/* Gets the whole list, page by page, each of which goes on after the last name of the former. */
static int ask_all(struct import *i, const struct origin *o)
{
	char subject[SUBJECT_MAX], after[TL_NAME_MAX + 1];
	struct taking t = { .import = i };
	int r;

	snprintf(subject, sizeof(subject), "tl1.%s.list.%s", i->rule->name, o->host);
	do {
		strcpy(after, t.next);
		t.next[0] = '\0';
		r = bus_ask(i->bus, subject, after, on_page, &t);
		if (!r)
			r = t.r;
		if (!r && (!t.is_page || (t.next[0] && strcmp(t.next, after) <= 0)))
			r = -EINVAL;
	} while (!r && t.next[0] && !atomic_load(&i->stop));
	return r;
}

/* With the lock, which it gives up meanwhile. */
static void compare(struct import *i, struct origin *o)
{
	const int64_t begin = now_mono_ns();
	int r;

	if (!o->failed)
		o->retry_ns = RETRY_NS;
	o->failed = false;
	o->compare_ns = begin + COMPARE_NS * (80 + rand() % 40) / 100;
	o->comparing = true;
	r = look_here(i, o);
	pthread_mutex_unlock(&i->lock);
	if (!r)
		r = ask_all(i, o);
	pthread_mutex_lock(&i->lock);
	o->comparing = false;
	if (r || atomic_load(&i->stop))
		origin_failed(o);
	else if (!o->set.told_version)
		gone_since(i, o, begin);
}

/* The host that is to be compared with first, or NULL if none is yet. What is silent while there is
 * no connection is not gone. */
static struct origin *look_after(struct import *i)
{
	const int64_t now = now_mono_ns();
	const bool up = bus_is_up(i->bus);
	tl_status status = { .size = sizeof(status) };
	struct origin *due = NULL;

	for (struct origin *o = i->origins; o; o = o->next) {
		if (!up)
			o->seen_ns = now;
		else if (o->up && now - o->seen_ns > SILENT_NS)
			origin_lost(i, o);
		if (!o->up && o->client && !o->uses) {
			tl_close(o->client);
			o->client = NULL;
		}
		if (o->client && !tl_get_status(o->client, &status) &&
		    status.started_ns != o->started_ns) { /* it may have lost our names */
			o->compare_ns = o->started_ns ? 0 : o->compare_ns;
			o->started_ns = status.started_ns;
		}
		if (up && o->up && now >= o->compare_ns &&
		    (!due || o->compare_ns < due->compare_ns))
			due = o;
	}
	return due;
}

/* The thread that looks after the hosts, twice a second. */
static void *watch_hosts(void *context)
{
	struct import *i = context;

	pthread_mutex_lock(&i->lock);
	while (!atomic_load(&i->stop)) {
		struct origin *due = look_after(i);

		if (due)
			compare(i, due);
		if (due)
			continue;
		pthread_mutex_unlock(&i->lock);
		nanosleep(&(struct timespec){ .tv_nsec = 500 * NS_PER_MS }, NULL);
		pthread_mutex_lock(&i->lock);
	}
	pthread_mutex_unlock(&i->lock);
	return NULL;
}

void import_compare(struct import *i)
{
	char subject[SUBJECT_MAX];

	pthread_mutex_lock(&i->lock);
	for (struct origin *o = i->origins; o; o = o->next)
		o->compare_ns = 0;
	pthread_mutex_unlock(&i->lock);
	snprintf(subject, sizeof(subject), "tl1.%s.who", i->rule->name);
	bus_publish(i->bus, subject, "", 0);
}

/* ---- transfers ---- */

/* With the lock, which it gives up meanwhile. The client may be NULL; else the origin's uses are to
 * be counted down. */
static struct job job_for(struct import *i, struct fetch *fetch, struct replica *r,
			  char label[LABEL_MAX])
{
	tl_client *reader = i->serve ? client_in(i, &i->reader, "tensorlease-mirror") : NULL;

	label_of(r->origin, label);
	return (struct job){ .config = i->config,
			     .fetch = fetch,
			     .client = origin_use(i, r->origin),
			     .local = r->local,
			     .label = label,
			     .known = r->known,
			     .tickets = i->serve ? serve_tickets(i->serve) : NULL,
			     .reader = reader,
			     .ticket = &r->ticket };
}

/* ---- sets ---- */

/* What it means is decided by the set now. Returns 0 or a negative errno. */
static int take_name(struct import *i, struct origin *o, struct set_name *name, struct replica *r)
{
	if (is_of_another(i, r, o))
		return -EEXIST;
	if (r->busy || r->queued)
		return -EBUSY;
	if (r->origin != o) {
		r->origin = o;
		r->known = false;
	}
	r->busy = true;
	name->replica = r;
	name->local = r->local;
	name->known = r->known;
	name->here = r->known && r->version == name->note.version &&
		     r->committed_ns == name->note.committed_ns;
	return 0;
}

struct gone {
	struct origin *origin;
	struct set_name *names; /* NULL: they are counted */
	size_t count;
};

/* Names that are not in the set. */
static void find_gone(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	struct gone *gone = context;

	if ((which != postorder && which != leaf) || r->origin != gone->origin || r->busy ||
	    r->queued)
		return;
	if (gone->names) {
		gone->names[gone->count] = (struct set_name){ .note.gone = true,
							      .replica = r,
							      .local = r->local };
		r->busy = true;
	}
	gone->count++;
}

/* Finds what is known of the names of a set. With the lock. */
static int find_names(struct import *i, struct origin *o, struct set *set)
{
	struct gone gone = { .origin = o };
	struct set_name *names;
	int r = 0;

	for (size_t n = 0; !r && n < set->count; n++) {
		struct set_name *name = &set->names[n];
		struct replica *replica = replica_find(&i->replicas, name->note.name);

		if (!replica)
			replica = replica_add(&i->replicas, o, name->note.name, i->rule->prefix);
		r = replica ? take_name(i, o, name, replica) : -ENOMEM;
	}
	if (r)
		return r;
	twalk_r(i->replicas.tree, find_gone, &gone);
	names = reallocarray(set->names, set->count + gone.count + 1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	set->names = names;
	set->all = set->count + gone.count;
	gone = (struct gone){ .origin = o, .names = names + set->count };
	twalk_r(i->replicas.tree, find_gone, &gone);
	return 0;
}

/* The names mean that now, unless it has failed. With the lock. */
static void note_set(struct import *i, struct set *set, int failed)
{
	struct replica *dead = NULL;

	for (size_t n = 0; n < set->all; n++) {
		const struct note *note = &set->names[n].note;
		struct replica *r = set->names[n].replica;

		if (!r)
			continue; /* it was not found any more */
		r->busy = false;
		if (r->target)
			queue(i, r);
		if (failed)
			continue;
		r->known = true;
		r->version = note->version;
		r->committed_ns = note->committed_ns;
		if (note->gone && !r->queued) {
			r->next = dead;
			dead = r;
		}
	}
	replicas_remove(&i->replicas, dead);
}

/* Does one moment. With the lock, which it gives up meanwhile. */
static int work_on_moment(struct import *i, struct origin *o, const struct job *job,
			  struct target **t)
{
	struct set set;
	int r;

	pthread_mutex_unlock(&i->lock);
	r = set_read(job, t, &set);
	pthread_mutex_lock(&i->lock);
	if (!r)
		r = find_names(i, o, &set);
	pthread_mutex_unlock(&i->lock);
	if (!r)
		r = set_transfer(job, t, &set);
	pthread_mutex_lock(&i->lock);
	note_set(i, &set, r);
	set_deinit(&set);
	return r;
}

/* Does what is to be done for a set. With the lock, which it gives up meanwhile. */
static void work_on_set(struct import *i, struct fetch *fetch, struct origin *o)
{
	struct target *t = take_ptr(o->set.target);
	char label[LABEL_MAX];
	struct job job = job_for(i, fetch, &o->set, label);
	int r = job.client ? 0 : -ENOTCONN;

	while (!r) {
		r = work_on_moment(i, o, &job, &t);
		if (r != -ENODATA || !t)
			break;
		r = 0; /* the origin holds a newer one for this host, maybe not what it has
			  announced */
		if (o->set.told_version < t->note.version)
			o->set.told_version = t->note.version;
		if (o->set.target && o->set.target->note.version <= t->note.version)
			free(take_ptr(o->set.target));
	}
	if (job.client)
		o->uses--;
	if (r && r != -ENODATA && !atomic_load(&i->stop))
		log_warn_limited(&i->failures, "a set did not come", "of=%s why=%s", o->host,
				 log_str(transfer_why(&job, r)));
	if (r && !o->set.target) {
		replica_untell(&o->set);
		origin_failed(o);
	}
	free(t);
}

/* ---- names ---- */

/* After a transfer, with the lock. */
static void note_result(struct replica *replica, struct origin *o, const struct target *t, int r)
{
	if (replica->origin != o)
		return;
	if (!r) {
		replica->known = true;
		replica->version = t->note.gone ? 0 : t->note.version;
		replica->committed_ns = t->note.gone ? 0 : t->note.committed_ns;
		return;
	}
	if (!replica->target)
		replica_untell(replica); /* the list is to tell it again */
	origin_failed(o);
}

/* Does what is to be done for one name. With the lock, which it gives up meanwhile. */
static void work_on(struct import *i, struct fetch *fetch, struct replica *replica)
{
	struct target *t = take_ptr(replica->target);
	struct origin *o = replica->origin;
	char label[LABEL_MAX];
	struct job job = job_for(i, fetch, replica, label);
	int r = job.client ? 0 : -ENOTCONN;

	if (job.client) {
		pthread_mutex_unlock(&i->lock);
		r = transfer(&job, &t);
		pthread_mutex_lock(&i->lock);
		o->uses--;
		if (r && r != -ENODATA && !atomic_load(&i->stop))
			log_warn_limited(&i->failures, "a name did not come",
					 "name=%s of=%s why=%s", log_str(replica->name), o->host,
					 log_str(transfer_why(&job, r)));
	}
	note_result(replica, o, t, r);
	free(t);
}

static void *work(struct import *i, bool light)
{
	struct fetch *fetch = fetch_open(i->config, i->serve ? serve_url(i->serve) : NULL,
					 &i->stop);
	struct replica *r;

	if (!fetch)
		log_error("a worker has no memory", "import=%s", i->rule->name);
	pthread_mutex_lock(&i->lock);
	while (fetch && !atomic_load(&i->stop)) {
		r = replica_dequeue(&i->replicas, LIGHT);
		if (!r && !light)
			r = replica_dequeue(&i->replicas, HEAVY);
		if (!r) {
			pthread_cond_wait(&i->more, &i->lock);
			continue;
		}
		r->busy = true;
		if (r->target && !r->name)
			work_on_set(i, fetch, r->origin);
		else if (r->target && replica_is_past(r, &r->target->note))
			free(take_ptr(r->target));
		else if (r->target)
			work_on(i, fetch, r);
		r->busy = false;
		if (r->target)
			queue(i, r);
	}
	pthread_mutex_unlock(&i->lock);
	fetch_close(fetch);
	return NULL;
}

static void *work_light(void *context)
{
	return work(context, true);
}

static void *work_all(void *context)
{
	return work(context, false);
}

/* ---- start and end ---- */

int import_open(struct import **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve)
{
	void *(*const runs[])(void *) = { watch_hosts, work_light, work_all };
	const char *from = rule->from ? rule->from : "*";
	struct import *i = calloc(1, sizeof(*i));
	char subject[SUBJECT_MAX];
	int r;

	if (!i)
		return -ENOMEM;
	*out = i;
	i->config = config;
	i->rule = rule;
	i->bus = bus;
	i->serve = serve;
	replicas_init(&i->replicas);
	pthread_mutex_init(&i->lock, NULL);
	pthread_cond_init(&i->more, NULL);
	snprintf(subject, sizeof(subject), "tl1.%s.ann.%s", rule->name, from);
	r = bus_subscribe(bus, subject, on_message, i);
	snprintf(subject, sizeof(subject), "tl1.%s.beat.%s", rule->name, from);
	if (!r)
		r = bus_subscribe(bus, subject, on_message, i);
	for (unsigned n = 0; !r && n <= WORKERS; n++) {
		r = thread_start(&i->threads[n], 0, runs[n < 2 ? n : 2], i);
		i->running += !r;
	}
	if (!r)
		log_info("importing", "import=%s from=%s namespace=%s prefix=%s", rule->name, from,
			 log_str(rule->name_space), log_str(rule->prefix));
	else
		log_error("names cannot be imported", "import=%s why=%s", rule->name,
			  log_str(strerror(-r)));
	return r;
}

void import_stop(struct import *i)
{
	pthread_mutex_lock(&i->lock);
	atomic_store(&i->stop, true);
	pthread_cond_broadcast(&i->more);
	pthread_mutex_unlock(&i->lock);
	for (unsigned n = 0; n < i->running; n++)
		pthread_join(i->threads[n], NULL);
	i->running = 0;
}

void import_close(struct import *i)
{
	struct origin *next;

	if (!i)
		return;
	for (struct origin *o = i->origins; o; o = next) {
		next = o->next;
		if (o->client)
			tl_close(o->client);
		free(o->set.target);
		free(o);
	}
	if (i->reader)
		tl_close(i->reader);
	replicas_deinit(&i->replicas);
	pthread_cond_destroy(&i->more);
	pthread_mutex_destroy(&i->lock);
	free(i);
}
