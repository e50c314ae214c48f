/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers. A put finds a free row of its own (F), writes the item into it (P1), waits until the
 * stream has room (Q1 to Q3), and publishes by one compare-and-exchange (P2). It asks the daemon
 * only for more rows, and for subscribers that are new.
 * A draft is an item that the program writes in place, between P1 and P2.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/stream/producer.h"
#include "util/clock.h"

/* ---- room ------------------------------------------------------------------------------------ */

/* True if the last item up to @number was taken. Skips words that only mark a producer's end. */
static bool queue_has_room(const struct stream_view *view, uint64_t number)
{
	for (uint32_t i = 0; i < view->words - view->depth && number >= view->words;
	     i++, number--) {
		uint64_t word = atomic_load(stream_word_at(view, number));

		if (stream_word_number(word) != number)
			return true; /* so old that a later word has replaced it */
		if (stream_word_is_item(word))
			return stream_word_number(atomic_load(
				       &view->page->take[stream_word_what(word)])) >= number;
	}
	return true;
}

/* The gate: true if item @number may be published. */
static bool has_room(struct tl_stream *s, uint64_t number)
{
	uint32_t who;
	uint64_t least;

	if (s->view->mode == STREAM_QUEUE)
		return queue_has_room(s->view, number - s->view->depth);
	if (number < s->room)
		return true;
	least = readers_lowest(s, &who);
	s->room = least > UINT64_MAX - s->view->depth ? UINT64_MAX : least + s->view->depth;
	return number < s->room;
}

/* Fails with a text that names the subscriber for which the stream waits. */
static int held_up(struct tl_stream *s)
{
	const struct stream_view *view = s->view;
	const struct stream_member *m;
	char path[32], program[32] = "?";
	uint32_t who = STREAM_MEMBERS;
	uint64_t least = readers_lowest(s, &who);
	FILE *f;

	if (has_room(s, s->next))
		return tl_fail(
			-ETIMEDOUT,
			"the stream '%s' has no memory for a further item: %u items of this "
			"producer are held or not taken, as `tensorlease stream info` shows; "
			"all of a stream are %d at most, within the daemon's capacity, this "
			"user's part of it and max_bytes",
			view->name, blocks_in_use(s), STREAM_ENTRIES);
	if (view->mode == STREAM_QUEUE)
		return tl_fail(-ETIMEDOUT, "the queue '%s' is full: %u items are not taken%s",
			       view->name, view->depth,
			       who == STREAM_MEMBERS ? ", and nobody subscribes" : "");
	if (who == STREAM_MEMBERS || least + view->depth > s->next) /* it has just moved on */
		return tl_fail(-ETIMEDOUT, "the stream '%s' was full", view->name);
	m = &view->entry->members[who];
	snprintf(path, sizeof(path), "/proc/%u/comm", load_once(&m->pid));
	f = fopen(path, "re");
	if (f) {
		if (fgets(program, sizeof(program), f))
			program[strcspn(program, "\n")] = '\0';
		fclose(f);
	}
	return tl_fail(
		-ETIMEDOUT,
		"the stream '%s' is held up by '%s' (pid %u), which is %llu items behind, of "
		"%u at most",
		view->name, program, load_once(&m->pid),
		(unsigned long long)(s->next - (least ? least : s->next - view->depth)),
		view->depth);
}

/* ---- P2 and P3 ------------------------------------------------------------------------------- */

static void ring(struct stream_view *view) /* P3 */
{
	if (__builtin_expect(!stream_bits_any(&view->page->sleeps), 1))
		return;
	if (view->mode == STREAM_QUEUE)
		stream_wake_worker(view);
	else
		stream_wake(&view->page->bell, INT_MAX);
}

/* True if the stream was ended, so that nothing more can be put. */
static bool is_ended(const struct tl_stream *s)
{
	return !s->reopens && stream_closed_at(s->view, s->next);
}

static int ended(const struct tl_stream *s)
{
	return tl_fail(-EPIPE, "the stream '%s' was ended: reopen it, or delete its name, to go on",
		       s->view->name);
}

/* Publishes @what with the next number, if there is room. PUT_E_FULL: there is none. */
static int publish_word(struct tl_stream *s, unsigned what, struct stream_entry *entry,
			uint64_t *number)
{
	struct stream_view *view = s->view;
	uint64_t word;
	int r;

	for (;;) {
		word = stream_end_find(view, &s->next);
		r = readers_read(s);
		if (r)
			return r;
		if (!stream_member_is(view, s->member, s->member_word))
			return stream_why_gone(view);
		if (is_ended(s))
			return ended(s);
		if (!has_room(s, s->next))
			return PUT_E_FULL;
		if (entry) {
			entry->number = s->next;
			atomic_thread_fence(memory_order_release);
		}
		/* the table of members was read after item next - 1 was found */
		if (atomic_load(&view->entry->changes) == s->changes &&
		    atomic_compare_exchange_strong(stream_word_at(view, s->next), &word,
						   stream_word(s->next, what))) /* P2 */
			break;
	}
	*number = s->next++;
	atomic_store_explicit(&view->page->tail, s->next, memory_order_relaxed);
	s->reopens = false;
	ring(view);
	return 0;
}

/* ---- puts ------------------------------------------------------------------------------------ */

static int write_item(struct tl_stream *s, struct putting *p) /* P1 */
{
	int r = blocks_find(s, p->plan.tensors + p->plan.description, &p->block);

	if (r)
		return r;
	r = item_write(s->blocks[p->block].draft->tensor.data, &p->plan);
	p->device_ref = 0;
	if (!r && p->plan.device_bytes)
		r = item_device_put(s, p, s->blocks[p->block].entry);
	else if (!r)
		item_device_drop(s, s->blocks[p->block].entry);
	if (r) {
		blocks_put_back(s, p->block);
		p->block = NO_BLOCK;
	}
	return r;
}

static struct stream_entry *entry_write(struct tl_stream *s, const struct putting *p)
{
	const struct stream_block *b = &s->blocks[p->block];
	struct stream_entry *e = &s->view->page->entries[b->entry];

	e->ref = b->draft->hold.ref;
	e->time_ns = (uint64_t)now_real_ns();
	e->description = (uint32_t)(p->plan.tensors / 8);
	e->description_len = (uint32_t)p->plan.description;
	e->producer = s->member;
	e->device_ref = p->device_ref;
	return e;
}

/* Returns 0 if there is room. To be called before work that would be wasted without. */
static int look_for_room(struct tl_stream *s)
{
	return has_room(s, s->next) ? 0 : is_ended(s) ? ended(s) : PUT_E_FULL;
}

/* One try: PUT_E_FULL if it has to wait. */
static int put_try(struct tl_stream *s, struct putting *p, uint64_t *number)
{
	int r = stream_usable(s->view);

	stream_end_find(s->view, &s->next); /* ORDER: F, before the table of members is read */
	if (!r)
		r = readers_read(s);
	if (r)
		return r;
	if (p->plan.parts && p->block == NO_BLOCK) {
		if (p->what != PUTS_DRAFT)
			r = look_for_room(s);
		r = r ? r : write_item(s, p); /* which asks for memory */
	} else if (p->device && !p->device_ref) {
		r = look_for_room(s);
		r = r ? r : item_device_commit(s, p, s->blocks[p->block].entry);
	}
	if (r || p->what == PUTS_DRAFT)
		return r;
	return p->block == NO_BLOCK
		       ? publish_word(s, STREAM_CLOSED, NULL, number)
		       : publish_word(s, s->blocks[p->block].entry, entry_write(s, p), number);
}

static int wait_for_room(struct tl_stream *s, struct call *c, struct putting *p, uint64_t *number)
{
	struct stream_page *page = s->view->page;
	uint32_t seen = atomic_load(&page->room);
	int r;

	stream_bit_set(&page->waits, s->member, &s->waiters); /* Q1 */
	r = put_try(s, p, number);			      /* Q2 */
	if (r == PUT_E_FULL) {
		r = stream_sleep(c, s->view, &page->room, seen, false); /* Q3 */
		r = r ? r : PUT_E_FULL;
	}
	stream_bit_clear(&page->waits, s->member, &s->waiters, &page->room);
	return r;
}

/* Spins for a while before it sleeps, because waking it costs the subscriber a system call. */
static int wait_and_put(struct tl_stream *s, struct putting *p, uint64_t *number)
{
	struct call c = stream_call(s->view, p->options.timeout_ns, p->options.interrupt,
				    p->options.interrupt_value);
	int r = PUT_E_FULL;

	spin_begin(&s->spin);
	while (r == PUT_E_FULL && spin_again(&s->spin))
		r = put_try(s, p, number);
	while (r == PUT_E_FULL)
		r = wait_for_room(s, &c, p, number);
	spin_end(&s->spin);
	return r;
}

static int put_locked(struct tl_stream *s, struct putting *p, uint64_t *number)
{
	int r = put_try(s, p, number);

	if (r == PUT_E_FULL && !p->options.timeout_ns)
		r = tl_fail(-EAGAIN, "the stream '%s' is full", s->view->name);
	if (r == PUT_E_FULL)
		r = wait_and_put(s, p, number);
	if (r == -ETIMEDOUT)
		r = held_up(s);
	if (p->block == NO_BLOCK || p->what == PUTS_DRAFT)
		return r;
	if (!r)
		blocks_published(s, p->block, *number);
	else if (p->what == PUTS_ITEM)
		blocks_put_back(s, p->block);
	return r;
}

int stream_producer_join(struct tl_stream *s)
{
	struct stream_ask ask = { .name = s->view->name, .role = STREAM_PRODUCER };
	int r;

	if (s->joined)
		return 0;
	r = stream_line_take(s->view->session, &s->line);
	if (r)
		return r;
	ask.line = s->line;
	r = stream_ask(s->view->session->client, &ask, &s->view);
	if (r) {
		stream_line_failed(s->view, s->line, r);
		return r;
	}
	s->member = ask.member;
	s->member_word = stream_member_read(s->view, s->member);
	s->next = s->view->words;
	s->changes = atomic_load(&s->view->entry->changes) - 1;
	if (ask.number > s->next)
		s->next = ask.number;
	s->joined = true;
	return 0;
}

int stream_put_options(tl_stream_put_options *o, const tl_stream_put_options *from, bool drafts)
{
	int r = 0;

	*o = (tl_stream_put_options){ .size = sizeof(*o) };
	if (from)
		r = client_options(o, sizeof(*o), from, sizeof(*o), "tl_stream_put_options");
	if (!r && o->flags & ~(uint32_t)TL_PUBLISH_SEALED)
		r = tl_fail(-EINVAL, "tl_stream_put_options.flags is %#x, of which %#x is known",
			    o->flags, TL_PUBLISH_SEALED);
	if (!r && (o->metadata_size > TL_STREAM_METADATA_MAX ||
		   (o->metadata_size && !o->metadata && !drafts)))
		r = tl_fail(
			-EINVAL, "tl_stream_put_options: %zu bytes of metadata%s; the limit is %d",
			o->metadata_size, o->metadata ? "" : " at NULL", TL_STREAM_METADATA_MAX);
	return r;
}

int stream_put_planned(struct tl_stream *s, struct putting *p, uint64_t *number)
{
	uint64_t n = 0;
	int r = stream_usable(s->view);

	if (r) /* a forked child must not wait for a thread of its parent */
		return r;
	pthread_mutex_lock(&s->mutex);
	r = s->closed ? tl_fail(-ECANCELED, "the stream '%s' is closed", s->view->name)
		      : stream_producer_join(s);
	if (!r)
		r = put_locked(s, p, &n);
	pthread_mutex_unlock(&s->mutex);
	if (r == -EAGAIN || r == -ETIMEDOUT)
		notifier_again(&s->notifier);
	if (!r && number)
		*number = n;
	return r;
}

int stream_put(struct tl_stream *s, struct putting *p, const tl_stream_put_options *options,
	       uint64_t *number)
{
	int r = stream_put_options(&p->options, options, p->what == PUTS_DRAFT);

	p->block = NO_BLOCK;
	p->plan.blank = p->what == PUTS_DRAFT;
	p->plan.metadata = p->options.metadata;
	p->plan.metadata_size = p->options.metadata_size;
	if (!r && p->plan.parts)
		r = item_measure(&p->plan);
	return r ? r : stream_put_planned(s, p, number);
}

int stream_parts_check(const tl_stream *s, const tl_part *parts, size_t n, const char *function)
{
	if (!s || !parts)
		return tl_fail(-EINVAL, "%s: %s is NULL", function, s ? "parts" : "stream");
	if (!n || n > TL_STREAM_PARTS_MAX)
		return tl_fail(-EINVAL, "an item of %zu tensors; it has 1 to %d", n,
			       TL_STREAM_PARTS_MAX);
	return 0;
}

TL_API int tl_stream_put(tl_stream *s, const tl_part *parts, size_t n,
			 const tl_stream_put_options *options, uint64_t *number)
{
	struct putting p = { .plan = { .parts = parts, .n = n } };
	int r = stream_parts_check(s, parts, n, "tl_stream_put");

	return r ? r : stream_put(s, &p, options, number);
}

TL_API int tl_stream_end(tl_stream *s, const tl_stream_put_options *options)
{
	struct putting p = { 0 };

	if (!s)
		return tl_fail(-EINVAL, "tl_stream_end: stream is NULL");
	return stream_put(s, &p, options, NULL);
}

TL_API int tl_stream_reopen(tl_stream *s)
{
	int r;

	if (!s)
		return tl_fail(-EINVAL, "tl_stream_reopen: stream is NULL");
	r = stream_check_ours(s->view);
	if (r)
		return r;
	pthread_mutex_lock(&s->mutex);
	s->reopens = true;
	pthread_mutex_unlock(&s->mutex);
	return 0;
}

/* ---- blocks of drafts ------------------------------------------------------------------------ */

char *stream_block_bytes(struct tl_stream *s, unsigned index)
{
	char *bytes;

	if (!stream_is_ours(s->view)) /* a forked child must not lock: no thread would unlock */
		return s->blocks[index].draft->tensor.data;
	pthread_mutex_lock(&s->mutex);
	bytes = s->blocks[index].draft->tensor.data;
	pthread_mutex_unlock(&s->mutex);
	return bytes;
}

void stream_draft_abort(struct tl_stream *s, const struct putting *p)
{
	if (!stream_is_ours(s->view))
		return;
	pthread_mutex_lock(&s->mutex);
	if (p->device_ref && !s->closed) /* its GPU parts were committed, then the item failed */
		item_device_drop(s, s->blocks[p->block].entry);
	blocks_put_back(s, p->block);
	pthread_mutex_unlock(&s->mutex);
	stream_tell_room(s->view); /* another thread may wait for memory */
}

/* ---- the descriptor -------------------------------------------------------------------------- */

/* True if a put would not wait: it succeeds or fails at once. */
static bool put_may_go(struct tl_stream *s)
{
	if (!s->joined || stream_usable(s->view))
		return true;
	stream_end_find(s->view, &s->next);
	if (readers_read(s) || is_ended(s))
		return true;
	if (!has_room(s, s->next))
		return false;
	return !s->starved || blocks_sweep(s) || s->nfree;
}

static bool put_may_go_locked(struct tl_stream *s, bool *starved)
{
	bool may;

	pthread_mutex_lock(&s->mutex);
	may = put_may_go(s);
	*starved = s->starved;
	pthread_mutex_unlock(&s->mutex);
	return may;
}

void stream_notifier_wait(struct notifier *n)
{
	struct tl_stream *s = container_of(n, struct tl_stream, notifier);
	struct stream_page *page = s->view->page;
	struct call c = stream_call(s->view, -1, (const uint32_t *)&n->task, NOTIFIER_WAITS);
	bool starved = false, may = put_may_go_locked(s, &starved);
	int r = 0;

	while (!may && !r) {
		uint32_t seen = atomic_load(&page->room);

		stream_bit_set(&page->waits, s->member, &s->waiters); /* Q1 */
		may = put_may_go_locked(s, &starved);		      /* Q2 */
		if (!may)
			r = stream_sleep(&c, s->view, &page->room, seen, false); /* Q3 */
		stream_bit_clear(&page->waits, s->member, &s->waiters, &page->room);
		may |= starved; /* no event reports free memory: let a put ask for it */
	}
}

TL_API int tl_stream_fd(tl_stream *s, int *fd)
{
	int r;

	if (!s || !fd)
		return tl_fail(-EINVAL, "tl_stream_fd: %s is NULL", s ? "fd" : "stream");
	r = stream_check_ours(s->view);
	if (!r)
		r = notifier_start(&s->notifier, s->view->name);
	if (!r)
		*fd = s->notifier.fd;
	return r;
}

/* ---- the end --------------------------------------------------------------------------------- */

void stream_ref(struct tl_stream *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void stream_unref(struct tl_stream *s)
{
	if (atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	blocks_free(s);
	for (uint32_t i = 0; i < s->nreaders; i++)
		reader_forget(&s->readers[i]);
	stream_view_unref(s->view);
	pthread_mutex_destroy(&s->mutex);
	free(s);
}

void stream_producer_end(struct tl_stream *s)
{
	const bool ours = stream_is_ours(s->view); /* a forked child must not lock */

	if (ours)
		pthread_mutex_lock(&s->mutex);
	s->closed = true;
	if (s->joined) {
		stream_leave(s->view, s->member);
		stream_line_give(s->view, s->line);
	}
	if (ours)
		pthread_mutex_unlock(&s->mutex);
}
