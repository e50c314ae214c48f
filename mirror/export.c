/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tensorlease/watch.h>

#include "mirror/export.h"
#include "mirror/moment.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define BATCH_NS NS_PER_MS	  /* the longest that an announcement waits for others */
#define LOOK_NS (30 * NS_PER_SEC) /* how often a set is checked again */

enum { SUBJECT_MAX = 2 * CONFIG_WORD_MAX + 16 };
enum { PAGES_KEPT = 8 };

/* A page of the list, as it was sent. Many hosts ask for the same page at the same time. */
struct kept_page {
	char *after, *text; /* NULL: none yet */
	size_t size;
	uint64_t life;
	/* It is valid while `changes` is as it was before the page was made. It also answers the
	 * questions up to number `until`, which had come before it was made. */
	unsigned changes;
	uint64_t until;
};

/* A name that is offered. */
struct offer {
	char *name;
	uint64_t version, committed_ns;
	struct ticket *ticket; /* NULL: none was needed yet */
};

struct export
{
	const struct config *config;
	const struct rule *rule;
	struct bus *bus;
	struct serve *serve;
	struct tickets *tickets;
	tl_client *client;
	tl_watch *watch;
	pthread_t thread;
	bool running;
	int64_t sent_ns;       /* when the thread last announced something */
	_Atomic uint32_t stop; /* interrupts waits */
	atomic_bool over;      /* its connection was ended by an administrator */
	atomic_ullong life;
	char announce[SUBJECT_MAX], beat[SUBJECT_MAX];
	pthread_mutex_t lock; /* protects what follows */
	void *offers;	      /* a tree, by name */
	struct given given;   /* under the lock of the tickets */
	struct ticket *set;   /* the newest moment, if the rule is a set */
	uint64_t moment;      /* that moment's time */
	/* Counted before a change is announced. So a host that gets an older page hears of the
	 * change later. */
	atomic_uint changes;
	struct kept_page kept[PAGES_KEPT]; /* used by on_list() only */
	unsigned keep_next;
	uint64_t questions; /* number of calls of on_list() */
};

static int compare_offers(const void *a, const void *b)
{
	return strcmp(((const struct offer *)a)->name, ((const struct offer *)b)->name);
}

static int notes_begin(const struct export *e, struct notes *notes)
{
	return notes_init(notes, atomic_load(&e->life), serve_url(e->serve));
}

void export_renew(struct export *e)
{
	uint64_t life = 0;

	if (getrandom(&life, sizeof(life), 0) != sizeof(life))
		life = (uint64_t)now_real_ns();
	atomic_store(&e->life, life | 1);
	atomic_fetch_add(&e->changes, 1);
}

/* ---- what is offered ---- */

/* Forgets a name. Returns whether it was offered; then *@note says that its version is gone. */
static bool offer_remove(struct export *e, const char *name, struct note *note)
{
	const struct offer key = { .name = (char *)name };
	struct offer *const *found, *offer = NULL;

	pthread_mutex_lock(&e->lock);
	found = tfind(&key, &e->offers, compare_offers);
	if (found) {
		offer = *found;
		tdelete(&key, &e->offers, compare_offers);
	}
	pthread_mutex_unlock(&e->lock);
	if (!offer)
		return false;
	*note = (struct note){ .name = name,
			       .gone = true,
			       .version = offer->version,
			       .committed_ns = offer->committed_ns };
	ticket_withdraw(e->tickets, offer->ticket);
	free(offer->name);
	free(offer);
	return true;
}

/* With the lock. */
static struct offer *offer_find_or_add(struct export *e, const char *name)
{
	const struct offer key = { .name = (char *)name };
	struct offer *const *found = tfind(&key, &e->offers, compare_offers);
	struct offer *offer = found ? *found : calloc(1, sizeof(*offer));

	if (!offer || found)
		return offer;
	offer->name = strdup(name);
	if (offer->name && tsearch(offer, &e->offers, compare_offers))
		return offer;
	free(offer->name);
	free(offer);
	return NULL;
}

/* Offers a name's present version, with a ticket if @ticket is not NULL. Returns 0 or -ENOMEM. */
static int offer_update(struct export *e, const tl_info *info, unsigned char *ticket)
{
	const struct member member = { .name = info->name,
				       .version = info->version,
				       .committed_ns = info->committed_ns,
				       .nbytes = info->nbytes };
	struct offer *offer;
	int r = -ENOMEM;

	pthread_mutex_lock(&e->lock);
	offer = offer_find_or_add(e, info->name);
	if (offer &&
	    (offer->version != info->version || offer->committed_ns != info->committed_ns)) {
		ticket_withdraw(e->tickets, take_ptr(offer->ticket));
		offer->version = info->version;
		offer->committed_ns = info->committed_ns;
	}
	if (offer && ticket && !offer->ticket)
		offer->ticket = ticket_offer(e->tickets, e->client, &e->given, &member);
	if (offer && (!ticket || offer->ticket))
		r = 0;
	if (!r && ticket)
		memcpy(ticket, ticket_id(offer->ticket), TICKET_SIZE);
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* Adds a note of the name's tensor, with its bytes if they are few and @with_bytes. Returns 0 or a
 * negative errno: -ENOENT if the name has no tensor that can be offered. */
static int add_name(struct export *e, struct notes *notes, const char *name, bool with_bytes)
{
	const tl_get_options get = rule_get_options(e->rule);
	tl_info info = { .size = sizeof(info) }, got = { .size = sizeof(got) };
	DLManagedTensorVersioned *tensor = NULL;
	struct note note;
	int r = tl_stat(e->client, name, &info);

	if (!r && !rule_gives(e->rule, info.device))
		r = -ENOENT;
	if (r)
		return r;
	if (with_bytes && info.nbytes <= NOTE_INLINE_MAX &&
	    !tl_get(e->client, name, &get, &tensor)) {
		if (!tl_tensor_info(tensor, &got) && rule_gives(e->rule, got.device) &&
		    got.nbytes <= NOTE_INLINE_MAX)
			info = got;
		else
			with_bytes = false;
	}
	ticket_describe(&note, &info);
	if (tensor && with_bytes)
		note.bytes = (char *)tensor->dl_tensor.data + tensor->dl_tensor.byte_offset;
	r = offer_update(e, &info, note.bytes ? NULL : note.ticket);
	if (!r)
		r = notes_add(notes, &note);
	if (tensor)
		tensor->deleter(tensor);
	return r;
}

/* ---- announcements ---- */

static void send_notes(struct export *e, struct notes *notes)
{
	size_t size;
	char *data = notes_write(notes, &size);

	if (data)
		bus_publish(e->bus, e->announce, data, size);
	free(data);
}

static void free_offer(void *node)
{
	struct offer *offer = node;

	free(offer->name);
	free(offer);
}

/* Another daemon has started, without any of the names. Other hosts notice when they compare. */
static void forget_all(struct export *e)
{
	pthread_mutex_lock(&e->lock);
	while (e->offers) {
		struct offer *offer = *(struct offer **)e->offers;

		tdelete(offer, &e->offers, compare_offers);
		ticket_withdraw(e->tickets, offer->ticket);
		free_offer(offer);
	}
	pthread_mutex_unlock(&e->lock);
	export_renew(e);
	export_beat(e);
}

/* Announces what the name means by now, which may be newer than the event. */
static void handle_event(struct export *e, struct notes *notes, const tl_watch_event *event)
{
	struct note note;

	atomic_fetch_add(&e->changes, 1);
	if (event->what == TL_WATCH_RESTARTED)
		forget_all(e);
	else if (event->what != TL_WATCH_PRODUCER_GONE &&
		 add_name(e, notes, event->name, true) == -ENOENT &&
		 offer_remove(e, event->name, &note))
		notes_add(notes, &note);
}

bool export_is_over(const struct export *e)
{
	return atomic_load(&e->over);
}

/* Pauses after an error, and notes whether the connection was ended on purpose. */
static void pause_or_end(struct export *e, int r, const char *what, const char *why)
{
	if (r == -ECONNABORTED)
		atomic_store(&e->over, true);
	log_warn(what, "export=%s why=%s", e->rule->name, log_str(why));
	nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
}

/* Announces one event, and others that come within BATCH_NS of the last announcement. */
static int announce(struct export *e, tl_watch_event *event)
{
	const int64_t until = e->sent_ns + BATCH_NS, end = now_mono_ns() + BATCH_NS;
	struct notes notes;
	int r = notes_begin(e, &notes);

	while (!r) {
		const tl_wait_options rest = { .size = sizeof(rest),
					       .timeout_ns = deadline_left_ns(until) };

		handle_event(e, &notes, event);
		if (notes_full(&notes) || deadline_passed(end))
			break;
		r = tl_watch_next(e->watch, &rest, event);
	}
	if (notes.count)
		send_notes(e, &notes);
	e->sent_ns = now_mono_ns();
	notes_deinit(&notes);
	return r == -ETIMEDOUT || r == -EAGAIN ? 0 : r;
}

static void *run(void *context)
{
	struct export *e = context;
	const tl_wait_options wait = { .size = sizeof(wait),
				       .timeout_ns = -1,
				       .interrupt = (const uint32_t *)&e->stop };
	tl_watch_event event = { .size = sizeof(event) };
	int r;

	while (!atomic_load(&e->stop)) {
		r = tl_watch_next(e->watch, &wait, &event);
		if (!r)
			r = announce(e, &event);
		if (r && r != -ETIMEDOUT && r != -EAGAIN && r != -ECANCELED)
			pause_or_end(e, r, "names cannot be watched now", tl_last_error());
	}
	return NULL;
}

/* Announces the set as it is now, if it has changed. */
static int announce_set(struct export *e)
{
	char *message = NULL;
	size_t size = 0;
	int r;

	pthread_mutex_lock(&e->lock);
	r = moment_take(e->tickets, e->client, &e->given, serve_url(e->serve), &e->set, &e->moment,
			&message, &size);
	pthread_mutex_unlock(&e->lock);
	if (message)
		bus_publish(e->bus, e->announce, message, size);
	free(message);
	return r < 0 ? r : 0;
}

/* The thread of a set. After any change it announces the set as a whole. */
static void *run_set(void *context)
{
	const tl_wait_options now = { .size = sizeof(now) };
	struct export *e = context;
	tl_watch_event event = { .size = sizeof(event) };
	tl_wait_options wait = { .size = sizeof(wait),
				 .timeout_ns = LOOK_NS,
				 .interrupt = (const uint32_t *)&e->stop };
	int r = 0;

	while (!atomic_load(&e->stop)) {
		r = tl_watch_next(e->watch, &wait, &event);
		while (!r)
			r = tl_watch_next(e->watch, &now, &event);
		if (r == -ETIMEDOUT || r == -EAGAIN)
			r = announce_set(e);
		/* -EAGAIN: names changed while they were read */
		wait.timeout_ns = r == -EAGAIN ? BATCH_NS : r ? 0 : LOOK_NS;
		if (r && r != -EAGAIN && r != -ECANCELED)
			pause_or_end(e, r, "a set cannot be announced now",
				     r == -E2BIG ? "it has more than 65,536 names"
						 : tl_last_error());
	}
	return NULL;
}

struct streams {
	struct export *export;
	struct notes *notes;
};

static int add_stream(const tl_stream_info *info, void *context)
{
	const struct streams *s = context;
	struct stream_note note;

	if (!feeds_offer(serve_feeds(s->export->serve), s->export->client, &s->export->given, info,
			 &note))
		notes_add_stream(s->notes, &note);
	return 0;
}

/* Adds the streams that there are. */
static int add_streams(struct export *e, struct notes *notes)
{
	struct feeds *feeds = serve_feeds(e->serve);
	struct streams all = { e, notes };
	int r = notes_streams(notes);

	pthread_mutex_lock(&e->lock);
	feeds_begin_offer(feeds, e->client);
	if (!r)
		r = tl_list_streams(e->client, e->rule->prefix, add_stream, &all);
	if (!r)
		feeds_end_offer(feeds, e->client);
	pthread_mutex_unlock(&e->lock);
	return r;
}

void export_beat(struct export *e)
{
	struct notes notes;
	size_t size;
	char *data = NULL;

	int r = notes_begin(e, &notes);

	if (!r && e->rule->streams && add_streams(e, &notes)) { /* the list failed */
		notes_deinit(&notes);
		r = notes_begin(e, &notes);
	}
	if (!r)
		data = notes_write(&notes, &size);
	if (data)
		bus_publish(e->bus, e->beat, data, size);
	free(data);
	notes_deinit(&notes);
}

/* A host asks which hosts there are. When the server comes back all hosts ask at once, so one beat
 * answers many of them. */
static void on_who(void *context, const char *subject, const char *reply, const void *data,
		   size_t size)
{
	(void)context;
	(void)subject;
	(void)reply;
	(void)data;
	(void)size;
	kill(getpid(), EXPORT_ASKED);
}

/* ---- lists ---- */

struct page {
	const char *after;
	size_t count;
	char *names[NOTES_MAX + 1]; /* one more than fit, which shows whether there are more */
};

static void add_to_page(const void *node, VISIT which, void *context)
{
	const struct offer *offer = *(struct offer *const *)node;
	struct page *p = context;

	if ((which != postorder && which != leaf) || p->count > NOTES_MAX ||
	    strcmp(offer->name, p->after) <= 0)
		return;
	p->names[p->count] = strdup(offer->name);
	p->count += p->names[p->count] != NULL;
}

/* Adds the names of a page, and says whether another one follows. Leaves out
 * names that mean nothing by now. Returns 0 or a negative errno. */
static int fill_page(struct export *e, struct notes *notes, const struct page *p)
{
	size_t n = 0;
	int r;

	for (; n < p->count && n < NOTES_MAX && !notes_full(notes); n++) {
		r = add_name(e, notes, p->names[n], false);
		if (r && r != -ENOENT && r != -ERANGE)
			return r;
	}
	return notes_page(notes, n < p->count ? p->names[n - 1] : "");
}

/* Answers with the newest moment of the set, or with a ticket to fetch it. */
static void list_set(struct export *e, const char *reply)
{
	struct notes notes = { 0 };
	size_t size = 0;
	char *text = NULL;

	pthread_mutex_lock(&e->lock);
	if (e->set)
		text = ticket_message(e->tickets, ticket_id(e->set), &size);
	if (text && size > NOTES_SIZE_MAX) {
		free(take_ptr(text));
		if (!notes_init(&notes, 0, serve_url(e->serve)) &&
		    !notes_set(&notes, ticket_id(e->set), e->moment, false))
			text = notes_write(&notes, &size);
		notes_deinit(&notes);
	}
	pthread_mutex_unlock(&e->lock);
	bus_publish(e->bus, reply, text ? text : "", text ? size : 0);
	free(text);
}

/* Takes the offered names of a question, in which each follows a byte 0. With the lock. */
static void take_names(const struct export *e, struct page *p, const char *question, size_t size)
{
	for (size_t at = 1; at < size && p->count < NOTES_MAX; at += strlen(question + at) + 1) {
		const struct offer key = { .name = (char *)question + at };

		if (!tfind(&key, &e->offers, compare_offers))
			continue;
		p->names[p->count] = strdup(question + at);
		p->count += p->names[p->count] != NULL;
	}
}

/* Returns the page that answers a question, or NULL after an error. */
static char *write_page(struct export *e, const char *question, size_t size, size_t *text_size)
{
	struct page page = { .after = question };
	struct notes notes;
	char *text = NULL;
	int r;

	pthread_mutex_lock(&e->lock);
	if (size && !*question)
		take_names(e, &page, question, size);
	else
		twalk_r(e->offers, add_to_page, &page);
	pthread_mutex_unlock(&e->lock);
	r = notes_begin(e, &notes);
	if (!r)
		r = fill_page(e, &notes, &page);
	if (!r)
		text = notes_write(&notes, text_size);
	notes_deinit(&notes);
	for (size_t n = 0; n < page.count; n++)
		free(page.names[n]);
	return text;
}

static void on_list(void *context, const char *subject, const char *reply, const void *data,
		    size_t size);

static const struct kept_page *page_find(const struct export *e, const char *after)
{
	const unsigned changes = atomic_load(&e->changes);
	const uint64_t life = atomic_load(&e->life);

	for (unsigned n = 0; n < PAGES_KEPT; n++) {
		const struct kept_page *p = &e->kept[n];

		if (p->text && p->life == life && !strcmp(p->after, after) &&
		    (p->changes == changes || p->until >= e->questions))
			return p;
	}
	return NULL;
}

static void page_free(struct kept_page *p)
{
	free(p->after);
	free(p->text);
}

/* Makes the page that follows a name, in place of the oldest page. Returns NULL after an error. */
static const struct kept_page *page_make(struct export *e, const char *after)
{
	struct kept_page *p = &e->kept[e->keep_next++ % PAGES_KEPT];
	const unsigned waiting = bus_waiting(e->bus, on_list, e);

	page_free(p);
	*p = (struct kept_page){ .life = atomic_load(&e->life),
				 .changes = atomic_load(&e->changes),
				 .until = e->questions + (waiting ? waiting - 1 : 0) };
	p->text = write_page(e, after, strlen(after), &p->size);
	p->after = p->text ? strdup(after) : NULL;
	if (!p->after)
		free(take_ptr(p->text));
	return p->after ? p : NULL;
}

/* Answers a question for a page of names. If it begins with a byte 0 it lists the names to send;
 * else it is the name after which the page begins. After an error the answer is empty. */
static void on_list(void *context, const char *subject, const char *reply, const void *data,
		    size_t size)
{
	struct export *e = context;
	char *question = calloc(1, size + 1), *text = NULL;
	const struct kept_page *page = NULL;
	size_t text_size = 0;

	(void)subject;
	e->questions++;
	if (!reply || !question || e->rule->is_set) {
		if (reply && question)
			list_set(e, reply);
		free(question);
		return;
	}
	if (size)
		memcpy(question, data, size);
	if (size && !*question) {
		text = write_page(e, question, size, &text_size);
	} else {
		page = page_find(e, question);
		page = page ? page : page_make(e, question);
	}
	if (page)
		bus_publish(e->bus, reply, page->text, page->size);
	else
		bus_publish(e->bus, reply, text ? text : "", text_size);
	free(text);
	free(question);
}

/* ---- what there is ---- */

static int add_to_look(const tl_info *info, void *context)
{
	struct export_look *look = context;

	if (!rule_gives(look->given->rule, info->device)) {
		look->on_gpus++;
		return 0;
	}
	look->names++;
	look->bytes += info->nbytes;
	return 0;
}

void export_look(struct export *e, struct export_look *look)
{
	*look = (struct export_look){ .given = &e->given };
	look->is_there = !tl_list(e->client, e->rule->prefix, add_to_look, look);
	pthread_mutex_lock(&e->lock);
	look->moment = e->moment;
	pthread_mutex_unlock(&e->lock);
}

/* ---- start and end ---- */

static int fail(const struct rule *rule, const char *what)
{
	log_error("names cannot be exported", "export=%s what=%s why=%s", rule->name, what,
		  log_str(tl_last_error()));
	return -EIO;
}

/* Offers each name at the start, since even the first list must be complete. */
static int offer_first(const tl_info *info, void *context)
{
	struct export *e = context;

	return rule_gives(e->rule, info->device) ? offer_update(e, info, NULL) : 0;
}

int export_open(struct export **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve)
{
	const tl_connect_options options = { .size = sizeof(options),
					     .address = config->socket,
					     .namespace_name = rule->name_space,
					     .label = "tensorlease-mirror" };
	const tl_watch_options prefix = { .size = sizeof(prefix), .flags = TL_WATCH_PREFIX };
	struct export *e = calloc(1, sizeof(*e));
	char subject[SUBJECT_MAX];
	int r = 0;

	if (!e)
		return -ENOMEM;
	*out = e;
	e->config = config;
	e->rule = rule;
	e->given.rule = rule;
	e->bus = bus;
	e->serve = serve;
	e->tickets = serve_tickets(serve);
	pthread_mutex_init(&e->lock, NULL);
	export_renew(e);
	snprintf(e->announce, SUBJECT_MAX, "tl1.%s.ann.%s", rule->name, config->host);
	snprintf(e->beat, SUBJECT_MAX, "tl1.%s.beat.%s", rule->name, config->host);
	snprintf(subject, SUBJECT_MAX, "tl1.%s.list.%s", rule->name, config->host);
	if (tl_connect(&options, &e->client))
		return fail(rule, "connect");
	if (tl_watch_open(e->client, rule->prefix, &prefix, &e->watch))
		return fail(rule, "watch");
	if (!rule->is_set && tl_list(e->client, rule->prefix, offer_first, e))
		return fail(rule, "list");
	if (rule->is_set && announce_set(e) == -E2BIG)
		return fail(rule, "more than 65,536 names of a set");
	r = bus_subscribe(bus, subject, on_list, e);
	snprintf(subject, SUBJECT_MAX, "tl1.%s.who", rule->name);
	if (!r)
		r = bus_subscribe(bus, subject, on_who, e);
	if (!r)
		r = thread_start(&e->thread, 0, rule->is_set ? run_set : run, e);
	e->running = !r;
	if (r)
		log_error("names cannot be exported", "export=%s why=%s", rule->name,
			  log_str(strerror(-r)));
	else
		log_info("exporting", "export=%s namespace=%s prefix=%s url=%s", rule->name,
			 log_str(rule->name_space), log_str(rule->prefix), serve_url(serve));
	return r;
}

void export_stop(struct export *e)
{
	atomic_store(&e->stop, 1);
	syscall(SYS_futex, &e->stop, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	if (e->running)
		pthread_join(e->thread, NULL);
	e->running = false;
}

void export_close(struct export *e)
{
	if (!e)
		return;
	for (unsigned n = 0; n < PAGES_KEPT; n++)
		page_free(&e->kept[n]);
	tdestroy(e->offers, free_offer);
	given_deinit(&e->given);
	if (e->watch)
		tl_watch_close(e->watch);
	if (e->client)
		tl_close(e->client);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
