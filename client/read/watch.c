/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches. For each watch the daemon notes in an entry of the catalog which names have changed
 * their meaning, and counts the changes in the word on which the watcher sleeps. A watcher
 * remembers the state of each name as it saw it last, by the index of the name's entry. When the
 * word has changed it looks at the names that were noted since. If more were noted than the entry
 * has room for, it looks at all names that it knows; and if a name may have come that it does not
 * know, at all names that exist. Publishing through rings is not noted, so the watcher looks at the
 * pages of rings each time, and sleeps on their words too.
 *
 * A name that is pointed at a member of a group is noted before the group is published, and once
 * more when that is finished. Until then it is looked at each time. So a watcher that finds one
 * tensor of a group published finds all names of the group by looking once more.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/connection/call.h"
#include "client/connection/process.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/lookup.h"
#include "client/read/names.h"
#include "client/read/sleep.h"
#include "client/read/watch.h"
#include "client/read/watched.h"
#include "util/cancel.h"
#include "util/fd.h"

/* A watch that only saves time does not wait long: all names can be looked at instead. */
#define ASK_NS (100 * NS_PER_MS)

struct tl_watch {
	struct tl_client *client;      /* we hold a reference, unless watch_silent() made us */
	struct client_watch of_client; /* with the descriptor */
	pid_t process;	     /* that opened the watch; a forked child's copy is of no use */
	bool prefix, hint;   /* the library can do without a hint */
	struct name_key key; /* its text lies behind this struct */
	int64_t ask_ns;	     /* how long it waits for the daemon's answer */

	bool closed;		 /* its client is closed */
	pthread_mutex_t mutex;	 /* guards all members from here on */
	struct session *session; /* its daemon notes changes for us; NULL: none does */
	uint32_t index, generation;
	int64_t looked_ns;   /* when the last look began */
	bool looked;	     /* all names were looked at, when the entry had these: */
	uint32_t seq, ended; /* members of the entry */
	struct watched_names names;
	uint32_t *pending; /* names that are pointed at members of unpublished groups */
	size_t npending, max_pending;
	struct backoff backoff;
};

/* ---- Looking ---- */

static bool is_watched(const struct tl_watch *w, const char *name)
{
	return w->prefix ? !strncmp(name, w->key.text, w->key.len) : !strcmp(name, w->key.text);
}

static int no_memory(const char *name)
{
	return tl_fail(-ENOMEM, "no memory to watch '%s'", name);
}

/* True if the name is pointed at a member of a group that is not published yet. */
static bool is_pending(const struct session *s, uint32_t index)
{
	uint64_t current = atomic_load(&s->catalog.names[index].current), former;

	return current && !(current & REF_RING) &&
	       lease_member(s, current, &former) == MEMBER_PENDING;
}

static int pending_add(struct tl_watch *w, uint32_t index)
{
	size_t max = w->max_pending ? w->max_pending * 2 : 64;
	uint32_t *grown;

	if (w->npending == w->max_pending) {
		grown = reallocarray(w->pending, max, sizeof(*grown));
		if (!grown)
			return no_memory(w->key.text);
		w->pending = grown;
		w->max_pending = max;
	}
	w->pending[w->npending++] = index;
	return 0;
}

/* Looks at the meaning of the name at @index. 0, LEASE_E_*, or a negative errno. */
static int look_at(struct tl_watch *w, struct session *s, uint32_t index)
{
	struct watched *e = index < s->catalog.max_names ? watched_at(&w->names, index) : NULL;
	struct name_entry entry;
	bool pending;
	int r;

	if (index >= s->catalog.max_names)
		return 0;
	pending = is_pending(s, index);
	r = names_entry(s, index, &entry);
	if (r == LEASE_E_TOO_MANY)
		return tl_fail(-EOVERFLOW, "a tensor that is watched by '%s' is held too often",
			       w->key.text);
	if (r && r != LEASE_E_STALE)
		return r;
	if (e && (r || strcmp(e->text, entry.info.name))) {
		watched_gone(&w->names, e);
		e = NULL;
	}
	if (!r && is_watched(w, entry.info.name)) {
		e = watched_get(&w->names, index, entry.info.name);
		if (!e)
			return no_memory(w->key.text);
		watched_found(&w->names, s, e, &entry);
	}
	return pending && (r || e) ? pending_add(w, index) : 0;
}

static int look_visit(struct session *s, uint32_t bucket, uint32_t index, void *context)
{
	(void)bucket;
	return look_at(context, s, index);
}

/* True if the name may not be as the last look found it. */
static bool may_differ(const struct session *s, const struct watched *e)
{
	const struct catalog_row *row = &s->catalog.rows[ref_slot(e->ref)];

	if (e->ring.ring || !e->ref || !e->producer ||
	    atomic_load(&s->catalog.names[e->index].current) != e->ref)
		return true;
	return load_once(&row->flags) & ROW_ON_DEVICE &&
	       (atomic_load_explicit(&row->progress, memory_order_relaxed) == ROW_LOST) != e->lost;
}

/* Looks at all names that the watch knows, and with @come at all names that exist. */
static int look_at_all(struct tl_watch *w, struct session *s, bool come)
{
	struct watched *e, *after;
	int r = 0;

	list_for_each_entry_safe(e, after, &w->names.all, link) {
		if (!r && may_differ(s, e))
			r = look_at(w, s, e->index);
	}
	if (r || !come)
		return r;
	w->npending = 0; /* the walk finds them again */
	return w->prefix ? names_walk(s, look_visit, w)
			 : names_walk_like(s, &w->key, look_visit, w);
}

/* Looks at the names that were noted before @seq. */
static int look_at_noted(struct tl_watch *w, struct session *s, const struct catalog_watch *entry,
			 uint32_t seq)
{
	uint32_t noted[WATCH_CHANGES], n = seq - w->seq;
	int r = 0;

	for (uint32_t i = 0; i < n; i++)
		noted[i] = atomic_load(&entry->changes[(w->seq + i) % WATCH_CHANGES]);
	/* ORDER: a change noted in one of these places meanwhile is counted, or is the next to be
	 * counted */
	if (atomic_load(&entry->seq) - w->seq >= WATCH_CHANGES)
		return look_at_all(w, s, true);
	for (uint32_t i = 0; !r && i < n; i++)
		r = look_at(w, s, noted[i]);
	return r;
}

static int look_at_pending(struct tl_watch *w, struct session *s)
{
	size_t n = w->npending;
	int r = 0;

	w->npending = 0; /* names still pending are added again, at or before this index */
	for (size_t i = 0; !r && i < n; i++)
		r = look_at(w, s, w->pending[i]);
	if (r)
		w->looked = false; /* some names were not looked at */
	return r;
}

/* Looks once at each ring, since a producer may be faster than we look. Later changes wake the
 * watcher. */
static int look_at_rings(struct tl_watch *w, struct session *s)
{
	struct list todo = LIST_INIT(todo);
	struct watched *e;
	int r = 0;

	list_move_all(&todo, &w->names.rings);
	while (!list_empty(&todo)) {
		e = list_first_entry(&todo, struct watched, of_rings);
		list_del(&e->of_rings);
		list_add_tail(&w->names.rings, &e->of_rings);
		if (!r && atomic_load(&e->ring.page->word) != e->ring.word)
			r = look_at(w, s, e->index);
	}
	return r;
}

static void look_at_producers(struct tl_watch *w, const struct session *s)
{
	struct watched *e;

	list_for_each_entry(e, &w->names.all, link)
		watched_look_producer(&w->names, s, e);
}

/* ---- The daemon's entry ---- */

/* True if what is known of the names of @a holds in @b. A daemon that lies about its instance must
 * not lead us beyond its tables. */
static bool same_tables(const struct catalog_view *a, const struct catalog_view *b)
{
	return a->instance == b->instance && a->slots == b->slots && a->max_names == b->max_names;
}

/* Asks the daemon to note changes. 0, LEASE_E_UNSERVED, SESSION_E_*, or a negative errno. */
static int watch_ask(struct tl_watch *w, struct session *s)
{
	struct {
		struct wire_watch fixed;
		char name[TL_NAME_MAX + 1];
	} m = { .fixed = { .flags = (w->prefix ? WIRE_WATCH_PREFIX : 0) |
				    (w->hint ? WIRE_WATCH_HINT : 0),
			   .name_len = (uint16_t)w->key.len } };
	struct conn_message answer;
	struct wire_watch_ref watched;
	int r;

	m.fixed.header = (struct wire_header){ .type = WIRE_WATCH,
					       .length = (uint32_t)(sizeof(m.fixed) + w->key.len) };
	memcpy(m.name, w->key.text, w->key.len);
	r = session_call(s, &m, deadline_after(w->ask_ns), &answer);
	if (!r)
		r = answer_expect(&answer, WIRE_WATCHED, "watching names");
	if (r)
		return r;
	memcpy(&watched, answer.bytes, sizeof(watched));
	/* Another instance has none of the names, and a restarted one has other entries. */
	if (w->session && !same_tables(&w->session->catalog, &s->catalog)) {
		watched_free_all(&w->names);
		w->names.restarted = true;
	}
	w->session = s;
	w->index = watched.watch;
	w->generation = watched.generation;
	w->npending = 0;
	w->looked = false;
	return 0;
}

/* Ends the daemon's watch. No look may be under way. */
static void watch_unask(struct tl_watch *w)
{
	struct wire_watch_ref m = { .header = { .type = WIRE_UNWATCH, .length = sizeof(m) },
				    .watch = w->index,
				    .generation = w->generation };
	struct session *s = atomic_load(&w->client->session);

	if (!s || s != w->session || !use_count_enter(&s->users))
		return;
	session_post(s, &m);
	use_count_leave(&s->users);
}

/* `seq` wraps around, once an hour at most. A watch that has rested for so long looks at all
 * names. */
#define LOOKED_AGE_NS (5 * 60 * NS_PER_SEC)

/* True if names may have come that the watch does not know. After 2^31 changes the order of `came`
 * and the last look cannot be told. */
static bool may_have_come(const struct tl_watch *w, const struct catalog_watch *entry, uint32_t seq)
{
	return seq - w->seq > INT32_MAX || (int32_t)(atomic_load(&entry->came) - w->seq) > 0;
}

/*
 * Looks at all names that may have changed. 0, LEASE_E_*, SESSION_E_*, or a negative errno.
 *
 * ORDER: `seq` is loaded before all else. A change that is noted later changes the word, and the
 * watcher sleeps at the loaded value. A change that was noted earlier is there
 * (tests/model/watch.pml).
 */
static int watch_look(struct tl_watch *w, struct session *s)
{
	const struct catalog_watch *entry;
	int64_t now = now_mono_coarse_ns();
	uint32_t seq, ended;
	bool looked;
	int r = w->session == s ? 0 : watch_ask(w, s);

	if (r)
		return r;
	entry = &s->catalog.watches[w->index];
	seq = atomic_load(&entry->seq);
	ended = atomic_load(&entry->ended);
	if (atomic_load(&entry->generation) != w->generation) {
		w->looked = false;
		r = watch_ask(w, s); /* another daemon has taken over */
		if (!r)
			r = lookup_again(s, &w->backoff);
		return r ? r : LEASE_E_STALE;
	}
	looked = w->looked && now - w->looked_ns < LOOKED_AGE_NS;
	w->looked = true;
	if (!looked || seq - w->seq > WATCH_CHANGES)
		r = look_at_all(w, s, !looked || may_have_come(w, entry, seq));
	else
		r = look_at_noted(w, s, entry, seq);
	if (!r)
		r = look_at_pending(w, s);
	if (!r)
		r = look_at_rings(w, s);
	if (!r && (!looked || ended != w->ended))
		look_at_producers(w, s);
	if (r) {
		w->looked = false;
		return r;
	}
	w->seq = seq;
	w->ended = ended;
	w->looked_ns = now;
	w->backoff = (struct backoff){ 0 };
	return 0;
}

/* ---- For the library itself ---- */

/* Copies the names, since no visitor may be called under the mutex. */
static int names_copy(const struct tl_watch *w, struct watch_names *names)
{
	size_t count = 0, bytes = 0;
	struct watched *e;
	char *text;

	list_for_each_entry(e, &w->names.all, link) {
		count += e->ref != 0;
		bytes += e->ref ? strlen(e->text) + 1 : 0;
	}
	names->list = malloc(count * sizeof(*names->list) + bytes + 1);
	if (!names->list)
		return no_memory(w->key.text);
	names->count = 0;
	text = (char *)(names->list + count);
	list_for_each_entry(e, &w->names.all, link) {
		if (!e->ref)
			continue;
		names->list[names->count++] = (struct watch_name){ e->index, text };
		text = stpcpy(text, e->text) + 1;
	}
	return 0;
}

/*
 * ORDER: `coming` is loaded before `seq`. The daemon makes it odd, publishes the name, counts it in
 * `seq`, and makes it even. So every name that any client had found before we saw an even value is
 * noted (names_list() would find it).
 */
int watch_names(struct tl_watch *w, struct session *s, struct watch_names *names)
{
	int r;

	if (atomic_load(&s->catalog.header->coming) & 1)
		return LEASE_E_STALE;
	pthread_mutex_lock(&w->mutex);
	r = watch_look(w, s);
	if (!r)
		r = names_copy(w, names);
	pthread_mutex_unlock(&w->mutex);
	return r;
}

int watch_any(struct tl_watch *w, struct session *s, struct wake_word *wake)
{
	struct watched *e;
	int r;

	pthread_mutex_lock(&w->mutex);
	r = watch_look(w, s);
	if (!r) {
		*wake = (struct wake_word){ .word = &s->catalog.watches[w->index].seq,
					    .seen = w->seq };
		r = LEASE_E_NONE;
	}
	list_for_each_entry(e, &w->names.all, link) {
		if (r == LEASE_E_NONE && e->ref)
			r = 0;
	}
	pthread_mutex_unlock(&w->mutex);
	return r;
}

void watch_rest(struct tl_watch *w)
{
	pthread_mutex_lock(&w->mutex);
	watch_unask(w);
	watched_free_all(&w->names);
	w->session = NULL;
	pthread_mutex_unlock(&w->mutex);
}

/* ---- Waiting ---- */

struct watching {
	struct tl_watch *watch;
	tl_watch_event *event; /* NULL: no event is taken yet, only looked for */
	struct sleeper sleeper;
	struct sleep_words words;
};

/* Collects the words to sleep on. 0, LEASE_E_UNSERVED, or a negative errno. */
static int watch_words(struct watching *x, const struct call *c, struct session *s)
{
	struct tl_watch *w = x->watch;
	struct watched *e;
	int r = 0;

	sleep_words_begin(&x->words, c, s);
	sleep_words_add(&x->words, &s->catalog.watches[w->index].seq, w->seq);
	list_for_each_entry(e, &w->names.rings, of_rings) {
		if (!r)
			r = sleeper_ask_wakes(&x->sleeper, c, s, e->ring.ring);
		sleep_words_add(&x->words, ring_futex(e->ring.page), (uint32_t)e->ring.word);
	}
	return r;
}

static int watch_late(const struct tl_watch *w, const struct call *c, const struct session *s)
{
	char what[TL_NAME_MAX + sizeof("names below ''")] = "any name", started[LATE_DAEMON];

	if (w->key.len)
		snprintf(what, sizeof(what), "%s'%s'", w->prefix ? "names below " : "",
			 w->key.text);
	if (!c->timeout_ns)
		return tl_fail(-EAGAIN, "nothing has happened to %s", what);
	late_daemon(c, s, started);
	return tl_fail(-ETIMEDOUT, "nothing happened to %s within %lld ms%s", what,
		       (long long)(c->timeout_ns / NS_PER_MS), started);
}

/* Looks, and takes an event if there is one. Returns 0 if so, and LEASE_E_NONE if it is time to
 * sleep. */
static int watch_step(struct watching *x, const struct call *c, struct session *s)
{
	struct tl_watch *w = x->watch;
	tl_watch_event event;
	int r;

	r = watch_look(w, s);
	if (r)
		return r;
	if (x->event ? watched_take(&w->names, &event) : watched_news(&w->names)) {
		if (x->event)
			*x->event = event;
		return 0;
	}
	r = c->timeout_ns ? watch_words(x, c, s) : 0;
	return r ? r : LEASE_E_NONE;
}

static int watch_once(struct watching *x, struct call *c, struct session *s)
{
	int r;

	if (!session_alive(s))
		return LEASE_E_UNSERVED;
	pthread_mutex_lock(&x->watch->mutex);
	r = watch_step(x, c, s);
	pthread_mutex_unlock(&x->watch->mutex);
	if (r != LEASE_E_NONE)
		return r;
	r = sleep_words_wait(&x->words, c, s, &x->sleeper);
	return r == -ETIMEDOUT ? watch_late(x->watch, c, s) : r;
}

static int watch_attempt(struct call *c, const struct use *use, void *context)
{
	int r;

	users_call(&use->session->users, 1);
	r = watch_once(context, c, use->session);
	users_call(&use->session->users, -1);
	return call_done(c, use, r);
}

/* ---- The descriptor ---- */

/* Waits until there is an event, or an error that ends the wait for one. */
static void notifier_wait(struct notifier *n)
{
	struct watching x = { .watch = container_of(n, struct tl_watch, of_client.notifier) };
	struct call c = call_begin(x.watch->client, -1);

	c.interrupt = &n->task;
	c.interrupt_value = NOTIFIER_WAITS;
	call_run(&c, watch_attempt, &x);
}

/* ---- The functions of watch.h ---- */

static int check_open(const struct tl_watch *w)
{
	if (w->process != getpid())
		return tl_fail(
			-ECHILD,
			"the watch of '%s' belongs to the parent of this process: open another",
			w->key.text);
	if (w->closed)
		return tl_fail(-ECANCELED, "the client of the watch of '%s' was closed",
			       w->key.text);
	return 0;
}

int watch_next(struct tl_watch *w, const tl_wait_options *options, tl_watch_event *event)
{
	struct watching x = { .watch = w, .event = event };
	struct call c;
	int r = check_open(w);

	if (r)
		return r;
	c = call_begin(w->client, options->timeout_ns);
	c.signals = true;
	c.interrupt = (const _Atomic uint32_t *)options->interrupt;
	c.interrupt_value = options->interrupt_value;
	r = call_run(&c, watch_attempt, &x);
	if (r == -EAGAIN || r == -ETIMEDOUT || r == -ENOTCONN)
		notifier_again(&w->of_client.notifier);
	return r;
}

int watch_fd(struct tl_watch *w, int *fd)
{
	int r = check_open(w);

	if (r)
		return r;
	r = notifier_start(&w->of_client.notifier, w->key.text);
	if (!r)
		*fd = w->of_client.notifier.fd;
	return r;
}

static int open_attempt(struct call *c, const struct use *use, void *context)
{
	struct tl_watch *w = context;

	if (!session_alive(use->session))
		return LEASE_E_UNSERVED;
	return call_done(c, use, watch_look(w, use->session));
}

struct tl_watch *watch_silent(struct tl_client *client, const char *prefix, size_t len)
{
	struct tl_watch *w = calloc(1, sizeof(*w) + len + 1);

	if (!w)
		return NULL;
	memcpy(w + 1, prefix, len + 1);
	w->key = name_key((const char *)(w + 1), len);
	w->client = client;
	w->process = getpid();
	w->prefix = true;
	w->hint = true;
	w->ask_ns = ASK_NS;
	notifier_init(&w->of_client.notifier, notifier_wait);
	pthread_mutex_init(&w->mutex, NULL);
	list_init(&w->of_client.link);
	watched_init(&w->names);
	return w;
}

/* Frees the watch. In a forked child the connection is the parent's, so the daemon is not told, and
 * no thread may have been using the watch at the fork. */
void watch_drop(struct tl_watch *w)
{
	if (w->process == getpid())
		watch_unask(w);
	watched_free_all(&w->names);
	notifier_free(&w->of_client.notifier);
	free(w->pending);
	pthread_mutex_destroy(&w->mutex);
	free(w);
}

int watch_open(struct tl_client *client, const char *name, uint32_t flags, struct tl_watch **out)
{
	struct tl_watch *w = watch_silent(client, name, strlen(name));
	struct call c = call_begin(client, 0);
	int r;

	if (!w)
		return no_memory(name);
	w->prefix = flags & TL_WATCH_PREFIX;
	w->hint = false;
	w->ask_ns = client->timeout_ns;
	atomic_fetch_add(&client->refs, 1);
	pthread_mutex_lock(&client->mutex);
	list_add_tail(&client->watches, &w->of_client.link);
	pthread_mutex_unlock(&client->mutex);
	r = call_run(&c, open_attempt, w);
	if (r && r != -ENOTCONN) { /* else the watch begins with the next daemon */
		watch_close(w);
		return r;
	}
	if (flags & TL_WATCH_NEW)
		watched_skip(&w->names);
	*out = w;
	return 0;
}

/* Watches of a parent, whose threads may have been changing them when it forked. Memory checkers
 * have to find them. */
static _Atomic(struct tl_watch *) set_aside;

static void watch_set_aside(struct tl_watch *w)
{
	struct tl_watch *next = atomic_load(&set_aside);

	do {
		w->of_client.link.next = next ? &next->of_client.link : NULL;
	} while (!atomic_compare_exchange_weak(&set_aside, &next, w));
}

/* In a forked child there is no thread to end, and the watch is only set aside. */
void watch_close(struct tl_watch *w)
{
	struct tl_client *client = w->client;
	const bool own = w->process == getpid();

	if (own && !w->closed)
		notifier_end(&w->of_client.notifier);
	pthread_mutex_lock(&client->mutex);
	list_del(&w->of_client.link);
	pthread_mutex_unlock(&client->mutex);
	if (own)
		watch_drop(w);
	else
		watch_set_aside(w);
	client_unref(client);
}

void watches_close(struct tl_client *client)
{
	struct tl_watch *w, *after;

	list_for_each_entry_safe(w, after, &client->watches, of_client.link) {
		if (w->process != getpid())
			continue;
		notifier_end(&w->of_client.notifier);
		watch_unask(w); /* no call on it is under way */
		w->closed = true;
	}
}
