/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and leaving a stream, and what its producers and subscribers share; see stream.h. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/checks.h"
#include "client/connection/answer.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/sleep.h"
#include "client/stream/stream.h"
#include "util/cleanup.h"
#include "util/fd.h"

enum { TRIES_DEFAULT = 3 };

/* ---- views ----------------------------------------------------------------------------------- */

struct stream_view *stream_view_ref(struct stream_view *view)
{
	atomic_fetch_add(&view->refs, 1);
	return view;
}

/* A forked child unmaps as well: its mappings are its own. */
void stream_view_unref(struct stream_view *view)
{
	if (!view || atomic_fetch_sub(&view->refs, 1) != 1)
		return;
	munmap(view->page, view->page_size);
	use_count_leave(&view->session->users);
	free(view);
}

/* Checks that the stream has the options that were asked for. An option of 0 was not asked for. */
static int check_asked(const struct stream_view *view, const tl_stream_options *o)
{
	static const char *const modes[] = {
		[STREAM_BROADCAST] = "a broadcast", [STREAM_QUEUE] = "a queue"
	};
	const struct catalog_stream *e = view->entry;
	const uint32_t flags = load_once(&e->flags);
	const struct {
		const char *name;
		int64_t asked, is;
	} numbers[] = {
		{ "depth", o->depth, view->depth },
		{ "keep", o->keep, view->keep },
		{ "max_tries", o->max_tries, load_once(&e->max_tries) },
		{ "ttl_ns", o->ttl_ns, (int64_t)load_once(&e->ttl_ns) },
	};
	const struct {
		const char *name;
		bool asked, is;
	} properties[] = {
		{ "drop_oldest", o->flags & TL_STREAM_DROP_OLDEST, flags & STREAM_DROPS_OLDEST },
		{ "shared", o->flags & TL_STREAM_SHARED, flags & STREAM_SHARED },
		{ "owner_bound", o->lifetime & TL_LIFETIME_OWNER_BOUND,
		  flags & STREAM_OWNER_BOUND },
	};

	if (o->mode && o->mode != view->mode)
		return tl_fail(-EMEDIUMTYPE, "the stream '%s' is %s, and was opened as %s",
			       view->name, modes[view->mode], modes[o->mode]);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (numbers[i].asked && numbers[i].asked != numbers[i].is)
			return tl_fail(
				-EINVAL,
				"the stream '%s' has %s %lld, and was opened with %lld: leave "
				"that out, or delete the name to make another stream",
				view->name, numbers[i].name, (long long)numbers[i].is,
				(long long)numbers[i].asked);
	for (size_t i = 0; i < sizeof(properties) / sizeof(*properties); i++)
		if (properties[i].asked && !properties[i].is)
			return tl_fail(
				-EINVAL,
				"the stream '%s' was made without %s, and was opened with it: "
				"leave that out, or delete the name to make another stream",
				view->name, properties[i].name);
	return 0;
}

/* Checks the stream's entry in the catalog, and maps its page. */
static int view_fill(struct stream_view *view, const tl_stream_options *asked,
		     const struct wire_stream *answer, int fd)
{
	const struct catalog_view *c = &view->session->catalog;
	uint32_t index = ref_slot(answer->stream);
	void *page;
	int r;

	if (!(answer->stream & REF_STREAM) || index >= CATALOG_STREAMS)
		return tl_fail(-EPROTO, "the daemon sent a stream that is none");
	view->ref = answer->stream;
	view->entry = &c->streams[index];
	view->depth = load_once(&view->entry->depth);
	view->keep = load_once(&view->entry->keep);
	view->mode = load_once(&view->entry->mode);
	if (!view->depth || view->depth > STREAM_DEPTH_MAX || view->keep > view->depth ||
	    (view->mode != STREAM_BROADCAST && view->mode != STREAM_QUEUE))
		r = tl_fail(-EPROTO, "the catalog has a stream that cannot be");
	else
		r = check_asked(view, asked);
	if (atomic_load(&view->entry->ref) != view->ref) /* we may have read another stream */
		return stream_gone(view);
	if (r)
		return r;
	view->words = stream_words(view->depth);
	view->page_size = stream_page_size(view->depth);
	r = descriptor_check_page(fd, view->page_size);
	if (r)
		return r;
	page = mmap(NULL, view->page_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return tl_fail_mmap("mapping the page of the stream '%s'", view->name);
	view->page = page;
	return 0;
}

/* Takes over the count of @use on success. */
static int view_make(const struct use *use, const struct stream_ask *ask,
		     const struct wire_stream *answer, int fd, struct stream_view **out)
{
	struct stream_view *view = calloc(1, sizeof(*view));
	int r;

	if (!view)
		return tl_fail(-ENOMEM, "no memory for the stream '%s'", ask->name);
	view->refs = 1;
	view->session = use->session;
	view->forks = use->session->forks;
	memcpy(view->name, ask->name, strlen(ask->name)); /* client_check_name() has checked it */
	r = view_fill(view, &ask->options, answer, fd);
	if (r)
		free(view);
	else
		*out = view;
	return r;
}

/* ---- OPEN and LEAVE -------------------------------------------------------------------------- */

static int open_request(struct session *s, const struct stream_ask *ask, int64_t deadline,
			struct wire_stream *out, int *fd)
{
	struct {
		struct wire_open fixed;
		char name[TL_NAME_MAX + 1];
	} m = { .fixed = { .header = { .type = WIRE_OPEN },
			   .mode = ask->options.mode,
			   .depth = ask->options.depth ? ask->options.depth : DEPTH_DEFAULT,
			   .keep = ask->options.keep,
			   .max_tries = ask->options.max_tries ? ask->options.max_tries
							       : TRIES_DEFAULT,
			   .ttl_ns = (uint64_t)ask->options.ttl_ns,
			   .role = ask->role,
			   .line = (uint16_t)ask->line } };
	size_t len = strlen(ask->name);
	struct conn_message answer;
	int r;

	if (!(ask->options.flags & TL_STREAM_EXISTING))
		m.fixed.flags |= WIRE_OPEN_MAKE;
	if (ask->options.flags & TL_STREAM_DROP_OLDEST)
		m.fixed.properties |= STREAM_DROPS_OLDEST;
	if (ask->options.flags & TL_STREAM_SHARED)
		m.fixed.properties |= STREAM_SHARED;
	if (ask->options.lifetime & TL_LIFETIME_OWNER_BOUND)
		m.fixed.properties |= STREAM_OWNER_BOUND;
	if (ask->kept)
		m.fixed.flags |= WIRE_OPEN_KEPT;
	m.fixed.name_len = (uint16_t)len;
	m.fixed.header.length = (uint32_t)(sizeof(m.fixed) + len);
	memcpy(m.name, ask->name, len);
	r = session_call(s, &m, deadline, &answer);
	if (!r)
		r = answer_expect(&answer, WIRE_STREAM, "opening a stream");
	if (r)
		return r;
	memcpy(out, answer.bytes, sizeof(*out));
	*fd = answer.fd;
	return 0;
}

struct opening {
	struct stream_ask *ask;
	struct stream_view **view;
};

static int open_attempt(struct call *c, const struct use *use, void *context)
{
	const struct opening *o = context;
	cleanup_(fd_closep) int fd = -1;
	struct wire_stream answer = { 0 };
	int r;

	users_call(&use->session->users, 1);
	r = open_request(use->session, o->ask, call_deadline(c), &answer, &fd);
	users_call(&use->session->users, -1);
	if (r)
		return r;
	o->ask->member = answer.member;
	o->ask->number = answer.number;
	r = view_make(use, o->ask, &answer, fd, o->view);
	if (r == -ESTALE && !deadline_passed(call_deadline(c)))
		return LEASE_E_STALE; /* it has just been deleted: find or make another one */
	return r;
}

static void leave(struct session *s, uint64_t stream, uint32_t member)
{
	struct wire_member_of m = { .header = { .type = WIRE_LEAVE, .length = sizeof(m) },
				    .stream = stream,
				    .member = member };
	struct conn_message answer;

	tl_failures_hide();
	if (!session_call(s, &m, session_deadline(s), &answer))
		fd_close(answer.fd);
	tl_failures_show();
}

/* Joins the stream of a view that is open already. */
static int join(struct stream_view *view, struct stream_ask *ask)
{
	cleanup_(fd_closep) int fd = -1;
	struct wire_stream answer = { 0 };
	int r = stream_usable(view);

	ask->options = (tl_stream_options){ .flags = TL_STREAM_EXISTING };
	if (!r)
		r = open_request(view->session, ask, session_deadline(view->session), &answer, &fd);
	if (!r && answer.stream != view->ref) { /* the name means another stream now */
		leave(view->session, answer.stream, answer.member);
		r = 1;
	}
	if (r > 0 || (r && atomic_load(&view->entry->ref) != view->ref))
		return stream_why_gone(view);
	ask->member = answer.member;
	ask->number = answer.number;
	return r;
}

int stream_ask(tl_client *client, struct stream_ask *ask, struct stream_view **view)
{
	struct opening o = { .ask = ask, .view = view };
	struct call c;

	if (*view)
		return join(*view, ask);
	c = call_begin_request(client);
	return call_run(&c, open_attempt, &o);
}

void stream_leave(struct stream_view *view, uint32_t member)
{
	bool usable;

	tl_failures_hide();
	usable = !stream_usable(view);
	tl_failures_show();
	if (usable)
		leave(view->session, view->ref, member);
}

int stream_line_take(struct session *s, unsigned *line)
{
	uint64_t used = atomic_load(&s->lines), bit;

	do {
		if (used == UINT64_MAX)
			return tl_fail(
				-ENOSPC,
				"this client has its maximum of %d streams and subscriptions that are in use",
				LEDGER_LINES);
		*line = (unsigned)__builtin_ctzll(~used);
		bit = (uint64_t)1 << *line;
	} while (!atomic_compare_exchange_weak(&s->lines, &used, used | bit));
	return 0;
}

void stream_line_give(struct stream_view *view, unsigned line)
{
	if (stream_is_ours(view))
		atomic_fetch_and(&view->session->lines, ~((uint64_t)1 << line));
}

void stream_line_failed(struct stream_view *view, unsigned line, int r)
{
	struct session *s = view->session;

	if (r != -ETIMEDOUT && r != -EMFILE) { /* EMFILE: the answer came without its descriptor */
		stream_line_give(view, line);
		return;
	}
	atomic_store(&ledger_line(s->ledger, s->catalog.slots, line)->position, UINT64_MAX);
	stream_tell_room(view);
}

/* ---- is it there? ---------------------------------------------------------------------------- */

int stream_gone(const struct stream_view *view)
{
	return tl_fail(-ESTALE,
		       "the stream '%s' is gone: its name was deleted, or its daemon has ended; "
		       "open it again",
		       view->name);
}

bool stream_is_ours(const struct stream_view *view)
{
	return session_is_ours(view->session) && view->session->forks == view->forks;
}

int stream_check_ours(const struct stream_view *view)
{
	int r = session_usable(view->session);

	if (!r && view->session->forks != view->forks)
		return tl_fail(-ECHILD,
			       "the stream '%s' was opened by the parent of this forked process: "
			       "open it again",
			       view->name);
	return r;
}

int stream_usable(const struct stream_view *view)
{
	struct session *s = view->session;
	int r = stream_check_ours(view);

	if (r)
		return r;
	if (atomic_load(&s->client->closed))
		return tl_fail(-ECANCELED, "the client of the stream '%s' is closed", view->name);
	/* a put sends nothing, so it must look for this itself */
	if (session_alive(s) && session_served(s) && atomic_load(&view->entry->ref) == view->ref)
		return 0;
	r = session_kicked(s);
	return r ? r : stream_gone(view);
}

int stream_why_gone(const struct stream_view *view)
{
	int r = stream_usable(view);

	if (!r) /* session_alive() looks seldom */
		r = session_kicked(view->session);
	return r ? r : stream_gone(view);
}

bool stream_member_is(const struct stream_view *view, uint32_t member, uint64_t word)
{
	return atomic_load(&view->entry->members[member].word) == word &&
	       atomic_load(&view->entry->ref) == view->ref;
}

uint64_t stream_member_read(const struct stream_view *view, uint32_t member)
{
	return atomic_load(&view->entry->members[member].word);
}

/* ---- the order ------------------------------------------------------------------------------- */

uint64_t stream_end_find(const struct stream_view *view, uint64_t *number)
{
	uint64_t word;

	while (stream_word_number(word = atomic_load(stream_word_at(view, *number))) >= *number)
		*number = stream_word_number(word) + 1;
	return word;
}

static bool is_end(unsigned what)
{
	return what >= STREAM_ENDED && what < STREAM_ENDED + STREAM_MEMBERS;
}

uint64_t stream_closed_at(const struct stream_view *view, uint64_t end)
{
	uint64_t word, number = end;

	do {
		number--;
		word = atomic_load(stream_word_at(view, number));
	} while (stream_word_number(word) == number && is_end(stream_word_what(word)) &&
		 end - number < view->words);
	return stream_word_number(word) == number && stream_word_what(word) == STREAM_CLOSED
		       ? number
		       : 0;
}

/* ---- sleeping and waking --------------------------------------------------------------------- */

void stream_wake(_Atomic uint32_t *word, int n)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);
}

void stream_bit_set(struct stream_bits *bits, uint32_t member, _Atomic uint32_t *threads)
{
	atomic_fetch_add(threads, 1);
	atomic_fetch_or(&bits->bits[member / 64], (uint64_t)1 << member % 64);
}

void stream_bit_clear(struct stream_bits *bits, uint32_t member, _Atomic uint32_t *threads,
		      _Atomic uint32_t *word)
{
	const uint64_t bit = (uint64_t)1 << member % 64;
	_Atomic uint64_t *set = &bits->bits[member / 64];

	if (atomic_fetch_sub(threads, 1) != 1)
		return;
	do {
		atomic_fetch_and(set, ~bit);
		if (!atomic_load(threads))
			return;
		/* another thread has just set it again, and may have missed a wake */
		atomic_fetch_or(set, bit);
		stream_wake(word, INT_MAX);
	} while (!atomic_load(threads));
}

void stream_wake_worker(struct stream_view *view)
{
	uint32_t nobody = STREAM_NOBODY;

	if (stream_bits_any(&view->page->sleeps) &&
	    atomic_compare_exchange_strong(&view->page->looker, &nobody, STREAM_COMING))
		stream_wake(&view->page->bell, 1);
}

struct call stream_call(const struct stream_view *view, int64_t timeout_ns,
			const uint32_t *interrupt, uint32_t interrupt_value)
{
	struct call c = call_begin(view->session->client, timeout_ns);

	c.interrupt = (const _Atomic uint32_t *)interrupt;
	c.interrupt_value = interrupt_value;
	return c;
}

int stream_sleep(struct call *c, struct stream_view *view, const _Atomic uint32_t *word,
		 uint32_t seen, bool soon)
{
	struct sleep_words words;
	struct sleeper sleeper = { .ask_ns = soon ? DEADLINE_NEVER : 0 };
	int r;

	if (call_interrupted(c))
		return tl_fail(-ECANCELED, "the wait at the stream '%s' was cancelled", view->name);
	sleep_words_begin(&words, c, view->session);
	sleep_words_add(&words, word, seen);
	r = sleep_words_wait(&words, c, view->session, &sleeper);
	if (r > 0)
		r = stream_usable(view);
	if (!r && call_interrupted(c))
		r = tl_fail(-ECANCELED, "the wait at the stream '%s' was cancelled", view->name);
	return r;
}
