/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each name has one transfer at a time; of versions announced meanwhile only the newest waits. Each
 * host's list is compared when it appears, and every half minute: that repairs lost messages.
 */
#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "mirror/import.h"
#include "mirror/origin.h"
#include "mirror/work.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

/* The least time between two checks of the hosts, which beats trigger. For this long, one list of
 * the names here serves all hosts. */
#define LOOK_NS (3 * NS_PER_SEC / 2)
#define DAEMON_NS (NS_PER_SEC / 10) /* between checks whether the daemon was restarted */
#define SILENT_NS (7 * NS_PER_SEC)  /* a host is gone after this silence: it beats every 2 s */

enum { SUBJECT_MAX = 2 * CONFIG_WORD_MAX + 16 };
enum { ASK_MAX = 100 }; /* names per question, so that their notes fit into a page */

/* ---- notes ---- */

static void take_note(struct import *i, struct origin *origin, const struct message *m,
		      const struct note *note)
{
	struct replica *r = replica_find(&i->replicas, note->name);
	bool done;

	if (note->gone && (r ? r->origin != origin : !origin->comparing))
		return;
	if (i->requests && !requests_have(i->requests, note->name))
		return;
	if (!r)
		r = replica_add(&i->replicas, origin, note->name, i->rule->prefix);
	if (!r || origin_is_another(i, r, origin))
		return;
	if (r->origin != origin) { /* versions of another host are not comparable */
		r->origin = origin;
		r->known = false;
		replica_untell(r);
	}
	if (!r->told_gone || !replica_is_old(r, note))
		r->told_ns = now_mono_ns(); /* the origin has the name */
	if (replica_is_old(r, note))
		return;
	done = replica_is_done(r, note);
	replica_tell(r, note);
	if (done)
		return;
	if (!note->gone)
		replica_late(r, note->version, note->committed_ns);
	free(r->target);
	r->target = target_new(m->url, note);
	if (r->target)
		import_queue(i, r);
}

/* ---- hosts ---- */

/* Returns the host of a subject tl1.RULE.WHAT.HOST, to which the server lets only that host
 * publish; or NULL. */
static struct origin *origin_of(struct import *i, const char *subject)
{
	const char *dot = strrchr(subject, '.'), *host = dot ? dot + 1 : subject;

	if (!config_is_word(host, CONFIG_HOST_MAX))
		return NULL;
	return origin_find_or_add(i, host);
}

struct of_origin {
	struct import *import;
	struct origin *origin;
	int64_t before_ns; /* names not announced since then */
	struct replica *dead;
};

/* Forgets what was announced: it will be announced again, and may have changed. */
static void untell(struct replica *r)
{
	replica_untell(r);
	free(take_ptr(r->target));
}

static void untell_all(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	const struct of_origin *of = context;

	if ((which == postorder || which == leaf) && r->origin == of->origin)
		untell(r);
}

/* True if the message is from a second host of the same name. Else two hosts would take turns: so a
 * URL that another one has replaced is refused while that one is alive. A new URL is accepted. */
static bool is_another_host(struct import *i, struct origin *o, const struct message *m)
{
	const uint64_t place = XXH3_64bits(m->url, strlen(m->url));
	bool former = false;

	for (unsigned n = 0; n < PLACES; n++)
		former |= place == o->former[n];
	if (place != o->place && !(former && now_mono_ns() - o->seen_ns < SILENT_NS)) {
		memmove(o->former + 1, o->former, (PLACES - 1) * sizeof(*o->former));
		o->former[0] = o->place;
		o->place = place;
	}
	if (place == o->place)
		return false;
	o->failures[FAILED_CONFLICT]++;
	log_warn_limited(&i->conflicts,
			 "two hosts have one name: write host = NAME into [mirror] of one",
			 "import=%s host=%s refused=%s", i->rule->name, o->host, log_str(m->url));
	return true;
}

/* Notes that the host is alive, since it has sent something. */
static void origin_seen(struct import *i, struct origin *o, uint64_t life)
{
	o->seen_ns = now_mono_ns();
	if (!o->up)
		log_info("a host is there", "import=%s host=%s", i->rule->name, o->host);
	if (!o->up || (life && life != o->life)) {
		twalk_r(i->replicas.tree, untell_all, &(struct of_origin){ .origin = o });
		untell(&o->set);
		origin_compare(i, o, 0);
		o->retry_ns = RETRY_NS;
	}
	if (life)
		o->life = life;
	o->up = true;
}

/* Queues the deletion of the name here, whatever was announced before. */
static void queue_gone(struct import *i, struct replica *r)
{
	free(r->target);
	r->target = calloc(1, sizeof(*r->target));
	replica_untell(r);
	if (!r->target)
		return;
	r->target->note.gone = true;
	import_queue(i, r);
}

/* Deletes a name that was not in the host's list. If it means nothing here, too, forgets it. */
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

/* Checks all hosts. Returns the one to compare with first, or NULL if none is due. Without a
 * connection silent hosts do not count as gone. */
static struct origin *look_after(struct import *i)
{
	const int64_t now = now_mono_ns();
	const bool up = bus_is_up(i->bus);
	const unsigned reconnects = bus_reconnects(i->bus);
	const bool heard = up && reconnects == i->reconnects; /* ever since the last check */
	const bool is_time = now - i->daemon_ns > DAEMON_NS;  /* not at each call */
	struct origin *due = NULL;
	uint64_t started_ns;
	bool is_room = false;

	if (is_time)
		i->daemon_ns = now;
	for (struct origin *o = i->origins; o; o = o->next) {
		if (!heard)
			o->seen_ns = now;
		else if (o->up && now - o->seen_ns > SILENT_NS)
			origin_lost(i, o);
		if (!o->up && o->client && !o->uses) {
			import_disconnect(&o->client);
			is_room = true;
		}
		started_ns = is_time ? origin_look(o) : 0;
		if (started_ns && started_ns != o->started_ns) { /* our names may be lost */
			o->compare_ns = o->started_ns ? 0 : o->compare_ns;
			o->looked_ns = 0;
			o->started_ns = started_ns;
		}
		if (up && o->up && now >= o->compare_ns &&
		    (!due || o->compare_ns < due->compare_ns))
			due = o;
	}
	for (struct origin *o = i->origins; is_room && o; o = o->next) {
		if (o->up && !o->client)
			o->compare_ns = 0;
	}
	i->reconnects = reconnects;
	i->looked_ns = now;
	return due;
}

/* ---- messages ---- */

struct taking {
	struct import *import;
	struct origin *origin;
	bool is_page;
	char next[TL_NAME_MAX + 1]; /* where the next page begins */
	int r;
};

static void show_note(const struct message *m, const struct note *note, void *context)
{
	struct taking *t = context;

	take_note(t->import, t->origin, m, note);
}

/* True for a message of this host itself, whose names are not imported. */
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

/* Queues a set if the message is about a newer moment. */
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
	replica_late(&o->set, m->moment, m->moment);
	free(o->set.target);
	o->set.target = t;
	import_queue(i, &o->set);
}

static int take_data(struct taking *t, const char *subject, const void *data, size_t size)
{
	struct message m;
	int r = message_read(&m, data, size);

	if (!r && !fetch_is_url(t->import->config, m.url))
		r = -EINVAL;
	if (!r) {
		t->origin = is_own(t->import, subject, &m) ? NULL : origin_of(t->import, subject);
		r = t->origin && !is_another_host(t->import, t->origin, &m) ? 0 : -EPERM;
	}
	if (!r) {
		origin_seen(t->import, t->origin, m.life);
		if (m.next && strlen(m.next) < sizeof(t->next))
			strcpy(t->next, m.next);
		if (m.has_streams && t->import->rule->streams)
			flows_update(&t->import->flows, t->import->config, t->import->rule,
				     t->origin->host, &t->origin->came, &m);
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
	if (now_mono_ns() - i->looked_ns >= LOOK_NS && look_after(i))
		pthread_cond_signal(&i->due); /* the thread wakes by itself only without beats */
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

/* Marks a name that is still here, and finds names that an earlier mirror has published. */
static int look_at(const tl_info *info, void *context)
{
	struct import *i = context;
	const size_t len = strlen(i->rule->prefix);
	const char *host = origin_of_label(info->publisher.label);
	struct origin *o;
	struct replica *r;

	if (!host || strncmp(info->name, i->rule->prefix, len) != 0)
		return 0;
	pthread_mutex_lock(&i->lock);
	r = replica_find(&i->replicas, info->name + len);
	o = r ? r->origin : origin_find(i, host);
	if (!r && o)
		r = replica_add(&i->replicas, o, info->name + len, i->rule->prefix);
	if (r && !strcmp(o->host, host))
		r->seen = true;
	pthread_mutex_unlock(&i->lock);
	return 0;
}

/* Makes a name come again that was deleted here, evicted or lost with the daemon. */
static void forget_unseen(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	const struct import *i = context;

	if (which != postorder && which != leaf)
		return;
	if (!r->seen && r->known && r->version && !r->busy && !r->target) {
		r->known = false;
		replica_untell(r);
		replica_untell(&r->origin->set);
		if (i->requests)
			requests_forget(i->requests, r->name);
	}
	r->seen = false;
}

/* Checks which names of all hosts are here, unless that has just been done: many hosts may be
 * compared at a time. With the lock, which it gives up meanwhile. Returns 0 or a negative errno. */
static int look_here(struct import *i, struct origin *o)
{
	const int64_t now = now_mono_ns();
	tl_client *client = origin_use(i, o);
	int r = 0;

	if (!client)
		return -ENOTCONN;
	if (!o->looked_ns || now - o->looked_ns > LOOK_NS) {
		for (struct origin *each = i->origins; each; each = each->next)
			each->looked_ns = now;
		pthread_mutex_unlock(&i->lock);
		r = tl_list(client, i->rule->prefix, look_at, i);
		pthread_mutex_lock(&i->lock);
		if (!r)
			twalk_r(i->replicas.tree, forget_unseen, i);
		for (struct origin *each = i->origins; r && each; each = each->next)
			each->looked_ns = 0;
	}
	o->uses--;
	return r;
}

static bool on_page(void *context, const char *subject, const void *data, size_t size)
{
	struct taking *t = context;

	take_message(t, subject, data, size);
	return t->r != -EPERM; /* another host of the same name may answer, too */
}

/* Gets the whole list, page by page. Each page begins after the last name of the page before. */
static int ask_all(struct import *i, const struct origin *o)
{
	char subject[SUBJECT_MAX], after[TL_NAME_MAX + 1];
	struct taking t = { .import = i };
	int r;

	snprintf(subject, sizeof(subject), "tl1.%s.list.%s", i->rule->name, o->host);
	do {
		strcpy(after, t.next);
		t.next[0] = '\0';
		r = bus_ask(i->bus, subject, after, strlen(after), on_page, &t);
		if (!r)
			r = t.r;
		if (!r && (!t.is_page || (t.next[0] && strcmp(t.next, after) <= 0)))
			r = -EINVAL;
	} while (!r && t.next[0] && !atomic_load(&i->stop));
	return r;
}

/* Asks for the requested names, ASK_MAX at a time, so that one page answers. */
static int ask_wanted(struct import *i, const struct origin *o)
{
	char subject[SUBJECT_MAX];
	struct taking t = { .import = i };
	size_t size = 0, end;
	char *names = requests_list(i->requests, &size);
	int r = names ? 0 : -ENOMEM;

	snprintf(subject, sizeof(subject), "tl1.%s.list.%s", i->rule->name, o->host);
	for (size_t at = 0; !r && at < size && !atomic_load(&i->stop); at = end) {
		end = at;
		for (unsigned n = 0; n < ASK_MAX && end < size; n++)
			end += 1 + strnlen(names + end + 1, size - end - 1);
		r = bus_ask(i->bus, subject, names + at, end - at, on_page, &t);
		if (!r)
			r = t.r;
		if (!r && (!t.is_page || t.next[0]))
			r = -EINVAL;
	}
	free(names);
	return r;
}

/* Compares with a host's list. With the lock, which it gives up meanwhile. */
static void compare(struct import *i, struct origin *o)
{
	const int64_t begin = now_mono_ns();
	int r;

	if (!o->failed)
		o->retry_ns = RETRY_NS;
	o->failed = false;
	o->compare_ns = begin + COMPARE_NS * (80 + rand() % 40) / 100;
	o->comparing = true;
	o->comparisons++;
	r = look_here(i, o);
	if (r == -ECONNABORTED)
		atomic_store(&i->over, true);
	pthread_mutex_unlock(&i->lock);
	if (!r)
		r = i->requests ? ask_wanted(i, o) : ask_all(i, o);
	pthread_mutex_lock(&i->lock);
	o->comparing = false;
	if (r || atomic_load(&i->stop))
		origin_failed(i, o);
	else if (!o->set.told_version)
		gone_since(i, o, begin);
}

/* Returns when to check a host if it sends nothing until then. */
static int64_t next_look(const struct import *i, const struct origin *o)
{
	const int64_t silent = o->seen_ns + SILENT_NS + NS_PER_MS;

	if (!o->up && !o->client)
		return INT64_MAX;
	if (!o->up || !bus_is_up(i->bus))
		return i->looked_ns + LOOK_NS;
	return o->compare_ns < silent ? o->compare_ns : silent;
}

/* Waits until a host must be compared or checked. With the lock, which it gives up meanwhile. */
static void wait_for_hosts(struct import *i)
{
	int64_t until = INT64_MAX;
	struct timespec ts;

	for (const struct origin *o = i->origins; o; o = o->next) {
		const int64_t next = next_look(i, o);

		until = next < until ? next : until;
	}
	ts = (struct timespec){ until / NS_PER_SEC, until % NS_PER_SEC };
	if (until == INT64_MAX)
		pthread_cond_wait(&i->due, &i->lock);
	else
		pthread_cond_timedwait(&i->due, &i->lock, &ts);
}

/* The thread that checks the hosts and compares with them. */
static void *watch_hosts(void *context)
{
	struct import *i = context;

	pthread_mutex_lock(&i->lock);
	while (!atomic_load(&i->stop)) {
		struct origin *due = look_after(i);

		if (due)
			compare(i, due);
		else
			wait_for_hosts(i);
	}
	pthread_mutex_unlock(&i->lock);
	return NULL;
}

static void on_request(void *context)
{
	struct import *i = context;

	pthread_mutex_lock(&i->lock);
	for (struct origin *o = i->origins; o; o = o->next)
		origin_compare(i, o, 0);
	pthread_mutex_unlock(&i->lock);
}

bool import_is_over(const struct import *i)
{
	return atomic_load(&i->over);
}

void import_compare(struct import *i)
{
	char subject[SUBJECT_MAX];

	on_request(i);
	snprintf(subject, sizeof(subject), "tl1.%s.who", i->rule->name);
	bus_publish(i->bus, subject, "", 0);
}

/* ---- start and end ---- */

int import_open(struct import **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve)
{
	void *(*const runs[])(void *) = { watch_hosts, work_light, work_all };
	const char *from = rule->from ? rule->from : "*";
	struct import *i = calloc(1, sizeof(*i));
	char subject[SUBJECT_MAX];
	pthread_condattr_t attr;
	int r = 0;

	if (!i)
		return -ENOMEM;
	*out = i;
	i->config = config;
	i->rule = rule;
	i->given.rule = rule;
	i->bus = bus;
	i->serve = serve;
	i->pace.rate = rule->rate;
	i->flows.pace = &i->pace;
	replicas_init(&i->replicas);
	pthread_mutex_init(&i->lock, NULL);
	pthread_cond_init(&i->more, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&i->due, &attr);
	pthread_condattr_destroy(&attr);
	snprintf(subject, sizeof(subject), "tl1.%s.ann.%s", rule->name, from);
	if (rule->requests) {
		i->requests = requests_open(config, rule, on_request, i);
		r = i->requests ? 0 : -EIO;
	}
	if (!r)
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
	pthread_cond_signal(&i->due);
	pthread_mutex_unlock(&i->lock);
	for (unsigned n = 0; n < i->running; n++)
		pthread_join(i->threads[n], NULL);
	i->running = 0;
	flows_close(&i->flows);
}

void import_close(struct import *i)
{
	struct origin *next;

	if (!i)
		return;
	for (struct origin *o = i->origins; o; o = next) {
		next = o->next;
		import_disconnect(&o->client);
		free(o->set.target);
		free(o);
	}
	import_disconnect(&i->reader);
	requests_close(i->requests);
	replicas_deinit(&i->replicas);
	given_deinit(&i->given);
	pthread_cond_destroy(&i->more);
	pthread_cond_destroy(&i->due);
	pthread_mutex_destroy(&i->lock);
	free(i);
}
