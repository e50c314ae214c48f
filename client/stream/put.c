/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers. A put finds a free row of its own (F), writes the item into it (P1), waits until the
 * stream has room (Q1 to Q3), and publishes by one compare-and-exchange (P2). It asks the daemon
 * only for more rows, and for subscribers that are new.
 *
 * ORDER: a subscriber counts an item in its ledger before it moves its position, and F reads the
 * positions first, then the ledgers: one of the two shows it. The daemon sets a row's version
 * before a ledger that F does not read counts the row, so F reads that last.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/checks.h"
#include "client/connection/answer.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/stream/stream.h"
#include "util/clock.h"
#include "util/fd.h"

enum { PUT_E_FULL = 1 << 9 }; /* wait for room, then look again */

/* ---- F --------------------------------------------------------------------------------------- */

/* True if nobody will take the block's item any more. */
static bool is_passed(const struct tl_stream *s, const struct stream_block *b, uint64_t least,
		      uint64_t least_lossy)
{
	const struct stream_view *view = s->view;
	uint64_t take;

	if (view->mode == STREAM_QUEUE) {
		take = atomic_load(&view->page->take[b->entry]);
		return stream_word_number(take) == b->number &&
		       stream_take_who(take) == STREAM_DONE;
	}
	if (least <= b->number)
		return false;
	if (b->number + view->depth < s->next)
		return true;
	return least_lossy > b->number && b->number + view->keep < s->next;
}

static bool is_held(const struct tl_stream *s, uint32_t slot)
{
	for (uint32_t i = 0; i < s->nreaders; i++) {
		const struct stream_reader *r = &s->readers[i];

		/* our own ledger counts each of our rows */
		if (r->word && atomic_load(&r->held[slot]) > (r->ledger ? 0 : 1))
			return true;
	}
	return false;
}

static void retire_post(const struct tl_stream *s, struct stream_block *b)
{
	struct {
		struct wire_retire m;
		uint64_t ref;
	} retire = { .m = { .header = { .type = WIRE_RETIRE, .length = sizeof(retire) },
			    .ring = s->view->ref,
			    .count = 1 },
		     .ref = b->draft->hold.ref };

	b->life = atomic_load(&s->view->session->catalog.header->life);
	session_post(s->view->session, &retire);
}

/* Gives the row to the daemon, which gives it back when nobody holds it. */
static void send_away(struct tl_stream *s, struct stream_block *b)
{
	struct session *session = s->view->session;

	pthread_mutex_lock(&session->produce_mutex);
	if (b->draft->hold.held)
		lease_release(session, ref_slot(b->draft->hold.ref));
	b->draft->hold.held = false;
	pthread_mutex_unlock(&session->produce_mutex);
	b->away = true;
	retire_post(s, b);
}

/* True if the daemon has given the row back. */
static bool is_back(struct tl_stream *s, struct stream_block *b)
{
	struct session *session = s->view->session;
	uint32_t slot = ref_slot(b->draft->hold.ref);
	uint64_t word = atomic_load(&session->catalog.rows[slot].word);
	uint64_t ref = ref_make(word >> 2, slot);

	if (row_word_state(word) != ROW_LIVE)
		return false;
	if (ref == b->draft->hold.ref) {
		/* a daemon that died may have read RETIRE without doing it */
		if (b->life != atomic_load(&session->catalog.header->life))
			retire_post(s, b);
		return false;
	}
	if (lease_hold(session, ref))
		return false;
	pthread_mutex_lock(&session->produce_mutex);
	b->draft->hold.ref = ref;
	b->draft->hold.held = true;
	pthread_mutex_unlock(&session->produce_mutex);
	b->away = false;
	b->number = 0;
	return true;
}

static bool is_free(struct tl_stream *s, struct stream_block *b, uint64_t least,
		    uint64_t least_lossy)
{
	uint32_t slot = ref_slot(b->draft->hold.ref);
	const struct catalog_row *row = &s->view->session->catalog.rows[slot];

	if (b->away)
		return is_back(s, b);
	if (!b->number)
		return true;
	if (!is_passed(s, b, least, least_lossy) || is_held(s, slot))
		return false;
	if (!__atomic_load_n(&row->version, __ATOMIC_SEQ_CST))
		return true;
	send_away(s, b);
	return false;
}

/*
 * Looks at all blocks at once: the lines of the subscribers are fetched once for all of them.
 *
 * ORDER: a worker of a queue that has joined meanwhile may have taken an old item, acknowledged it,
 * and hold it. So the table must not have changed when the take words were read.
 */
static int sweep(struct tl_stream *s)
{
	const struct catalog_stream *entry = s->view->entry;
	uint64_t least, least_lossy;
	uint32_t who;
	int r;

	do {
		r = readers_read(s);
		if (r)
			return r;
		least = readers_lowest(s, &who);
		least_lossy = readers_lowest_lossy(s);
		s->nfree = 0;
		for (unsigned i = s->nblocks; i-- > 0;)
			if (is_free(s, &s->blocks[i], least, least_lossy))
				s->free[s->nfree++] = i;
	} while (atomic_load(&entry->changes) != s->changes);
	return 0;
}

/* Takes a free block of at least @size bytes off the stack. */
static struct stream_block *block_pop(struct tl_stream *s, uint64_t size)
{
	for (unsigned i = s->nfree; i-- > 0;) {
		struct stream_block *b = &s->blocks[s->free[i]];

		if (b->draft->capacity < size)
			continue;
		memmove(&s->free[i], &s->free[i + 1], (s->nfree - i - 1) * sizeof(*s->free));
		s->nfree--;
		return b;
	}
	return NULL;
}

static void block_push(struct tl_stream *s, const struct stream_block *b)
{
	s->free[s->nfree++] = (unsigned)(b - s->blocks);
}

/* ---- more blocks ----------------------------------------------------------------------------- */

/* Steps of 1/8 of an octave, so that sizes that differ a little share blocks. */
static uint64_t rounded(uint64_t size)
{
	uint64_t step = 64;

	while (size > step * 16)
		step *= 2;
	return (size + step - 1) / step * step;
}

static bool blocks_reserve(struct tl_stream *s)
{
	unsigned max = s->max_blocks ? 2 * s->max_blocks : 16;
	struct stream_block *blocks;
	unsigned *free_blocks;

	if (s->nblocks < s->max_blocks)
		return true;
	blocks = realloc(s->blocks, max * sizeof(*blocks));
	if (!blocks)
		return false;
	s->blocks = blocks;
	free_blocks = realloc(s->free, max * sizeof(*free_blocks));
	if (!free_blocks)
		return false;
	s->free = free_blocks;
	s->max_blocks = max;
	return true;
}

static int rows_request(struct tl_stream *s, uint64_t ref, unsigned *entry)
{
	struct session *session = s->view->session;
	struct {
		struct wire_rows m;
		uint64_t ref;
	} rows = { .m = { .header = { .type = WIRE_ROWS, .length = sizeof(rows) },
			  .stream = s->view->ref,
			  .member = s->member,
			  .count = 1 },
		   .ref = ref };
	struct conn_message answer;
	uint64_t got = 0;
	int r = session_call(session, &rows, session_deadline(session), &answer);

	if (r)
		return r < 0 ? r : stream_gone(s->view);
	r = answer_expect(&answer, WIRE_ENTRIES, "adding a row to a stream");
	if (r)
		return r;
	if (answer.header.length >= sizeof(struct wire_entries) + sizeof(got))
		memcpy(&got, answer.bytes + sizeof(struct wire_entries), sizeof(got));
	if (answer.header.length < sizeof(struct wire_entries) + sizeof(got) ||
	    got >= STREAM_ENTRIES)
		return tl_fail(-EPROTO, "the daemon sent an entry that there is not");
	*entry = (unsigned)got;
	return 0;
}

struct adding {
	struct tl_stream *s;
	struct draft_request request;
	struct tl_draft *draft;
};

static int add_attempt(struct call *c, const struct use *use, void *context)
{
	struct adding *a = context;

	if (use->session != a->s->view->session)
		return stream_gone(a->s->view);
	return shared_draft_new(c, use, &a->request, &a->draft);
}

static int block_add(struct tl_stream *s, uint64_t size, struct stream_block **out)
{
	int64_t shape = (int64_t)size;
	struct adding a = { .s = s,
			    .request = { .name = "",
					 .shape = &shape,
					 .ndim = 1,
					 .dtype = { kDLUInt, 8, 1 },
					 .nbytes = size,
					 .ring = TL_RING_NONE } };
	struct stream_block b = { 0 };
	struct call c = call_begin_request(s->view->session->client);
	int r;

	if (!blocks_reserve(s))
		return tl_fail(-ENOMEM, "no memory for the blocks of the stream '%s'",
			       s->view->name);
	r = call_run(&c, add_attempt, &a);
	if (r)
		return r;
	r = rows_request(s, a.draft->hold.ref, &b.entry);
	if (r) {
		draft_abort(a.draft);
		return r;
	}
	draft_sent(a.draft); /* it is no draft any more, and is not aborted */
	b.draft = a.draft;
	s->blocks[s->nblocks] = b;
	*out = &s->blocks[s->nblocks++];
	return 0;
}

/* Finds or makes a block. PUT_E_FULL: none is free, and there can be no more now. */
static int block_find(struct tl_stream *s, uint64_t size, struct stream_block **out)
{
	int r;

	*out = block_pop(s, size);
	if (!*out) {
		r = sweep(s);
		if (r)
			return r;
		*out = block_pop(s, size);
	}
	if (*out)
		return 0;
	if (s->capacity < rounded(size))
		s->capacity = rounded(size);
	r = block_add(s, s->capacity, out);
	s->starved = (r == -ENOSPC || r == -EDQUOT) && s->nblocks;
	return s->starved ? PUT_E_FULL : r;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* True if the last item up to @number was taken. Ends of producers are passed over. */
static bool queue_has_room(const struct stream_view *view, uint64_t number)
{
	for (uint32_t i = 0; i < view->words - view->depth && number >= view->words;
	     i++, number--) {
		uint64_t word = atomic_load(stream_word_at(view, number));

		if (stream_word_number(word) != number)
			return true; /* so long ago that it has been replaced */
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

/* Says who holds up the stream. */
static int held_up(struct tl_stream *s)
{
	const struct stream_view *view = s->view;
	const struct stream_member *m;
	char path[32], program[32] = "?";
	uint32_t who = STREAM_MEMBERS;
	uint64_t least = readers_lowest(s, &who);
	FILE *f;

	if (view->mode == STREAM_QUEUE)
		return tl_fail(-ETIMEDOUT, "the queue '%s' is full: %u items are not taken",
			       view->name, view->depth);
	if (who == STREAM_MEMBERS || least + view->depth > s->next)
		return tl_fail(-ETIMEDOUT,
			       "the stream '%s' is held up: subscribers hold all of the items for "
			       "which there is memory",
			       view->name);
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
			return stream_gone(view);
		if (!s->reopens && stream_is_closed(view, s->next))
			return tl_fail(-EPIPE, "the stream '%s' was ended", view->name);
		if (!has_room(s, s->next))
			return PUT_E_FULL;
		if (entry) {
			entry->number = s->next;
			atomic_thread_fence(memory_order_release);
		}
		/* the table of members was read after item next - 1 was seen */
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

struct putting {
	const tl_part *parts; /* NULL: the end */
	size_t n;
	const tl_stream_put_options *options;
	uint64_t tensors, size;
	size_t description;
	struct stream_block *block; /* written */
};

static int write_item(struct tl_stream *s, struct putting *p) /* P1 */
{
	struct stream_block *b = NULL;
	struct stream_entry *e;
	int r = block_find(s, p->size, &b);

	if (r)
		return r;
	r = item_write(b->draft->tensor.data, p->parts, p->n, p->options->metadata,
		       p->options->metadata_size, p->tensors);
	if (r) {
		block_push(s, b);
		return r;
	}
	e = &s->view->page->entries[b->entry];
	e->ref = b->draft->hold.ref;
	e->time_ns = (uint64_t)now_real_ns();
	e->description = (uint32_t)(p->tensors / 8);
	e->description_len = (uint32_t)p->description;
	e->producer = s->member;
	p->block = b;
	return 0;
}

/* One try: PUT_E_FULL if it has to wait. */
static int put_try(struct tl_stream *s, struct putting *p, uint64_t *number)
{
	unsigned what = STREAM_CLOSED;
	int r = stream_usable(s->view);

	stream_end_find(s->view, &s->next); /* ORDER: F, before the table of members is read */
	if (!r)
		r = readers_read(s);
	if (r)
		return r;
	if (p->parts && !p->block) {
		if (!has_room(s, s->next)) /* no memory is asked for before there is room */
			return PUT_E_FULL;
		r = write_item(s, p);
		if (r)
			return r;
	}
	if (p->block)
		what = p->block->entry;
	return publish_word(s, what, p->block ? &s->view->page->entries[what] : NULL, number);
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

/* Looks for a while before it asks to be told: being told costs the subscriber a system call. */
static int wait_and_put(struct tl_stream *s, struct putting *p, uint64_t *number)
{
	struct call c = stream_call(s->view, p->options->timeout_ns, p->options->interrupt,
				    p->options->interrupt_value);
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

	if (r == PUT_E_FULL && !p->options->timeout_ns)
		r = tl_fail(-EAGAIN, "the stream '%s' is full", s->view->name);
	if (r == PUT_E_FULL)
		r = wait_and_put(s, p, number);
	if (r == -ETIMEDOUT)
		r = held_up(s);
	if (p->block && !r)
		p->block->number = *number;
	else if (p->block)
		block_push(s, p->block);
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
		stream_line_give(s->view, s->line);
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

static int put_options_check(tl_stream_put_options *o, const tl_stream_put_options *from)
{
	int r = 0;

	*o = (tl_stream_put_options){ .size = sizeof(*o) };
	if (from)
		r = client_options(o, sizeof(*o), from, sizeof(*o), "tl_stream_put_options");
	if (!r && o->reserved)
		r = tl_fail(-EINVAL, "tl_stream_put_options.reserved is %u, not 0", o->reserved);
	if (!r && (o->metadata_size > TL_STREAM_METADATA_MAX || (o->metadata_size && !o->metadata)))
		r = tl_fail(
			-EINVAL, "tl_stream_put_options: %zu bytes of metadata%s; the limit is %d",
			o->metadata_size, o->metadata ? "" : " at NULL", TL_STREAM_METADATA_MAX);
	return r;
}

static int put(struct tl_stream *s, struct putting *p, const tl_stream_put_options *options,
	       uint64_t *number)
{
	tl_stream_put_options o;
	uint64_t n = 0, description = 0;
	int r = put_options_check(&o, options);

	if (!r && p->parts)
		r = item_measure(p->parts, p->n, o.metadata_size, &p->tensors, &description);
	if (r)
		return r;
	p->options = &o;
	p->description = description;
	p->size = p->tensors + description;
	if (p->size > (uint64_t)UINT32_MAX * 8)
		return tl_fail(-EINVAL, "an item of %llu bytes; the limit is 32 GiB",
			       (unsigned long long)p->size);
	r = stream_usable(s->view);
	if (r) /* a forked child must not wait for a thread of its parent */
		return r;
	pthread_mutex_lock(&s->mutex);
	r = stream_producer_join(s);
	if (!r)
		r = put_locked(s, p, &n);
	pthread_mutex_unlock(&s->mutex);
	if (r == -EAGAIN || r == -ETIMEDOUT)
		notifier_again(&s->notifier);
	if (!r && number)
		*number = n;
	return r;
}

TL_API int tl_stream_put(tl_stream *s, const tl_part *parts, size_t n,
			 const tl_stream_put_options *options, uint64_t *number)
{
	struct putting p = { .parts = parts, .n = n };

	if (!s || !parts)
		return tl_fail(-EINVAL, "tl_stream_put: %s is NULL", s ? "parts" : "stream");
	if (!n || n > TL_STREAM_PARTS_MAX)
		return tl_fail(-EINVAL, "an item of %zu tensors; it has 1 to %d", n,
			       TL_STREAM_PARTS_MAX);
	return put(s, &p, options, number);
}

TL_API int tl_stream_end(tl_stream *s, const tl_stream_put_options *options)
{
	struct putting p = { 0 };

	if (!s)
		return tl_fail(-EINVAL, "tl_stream_end: stream is NULL");
	return put(s, &p, options, NULL);
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

/* ---- the descriptor -------------------------------------------------------------------------- */

/* True if a put need not wait, also if it would fail. */
static bool put_may_go(struct tl_stream *s)
{
	if (!s->joined || stream_usable(s->view))
		return true;
	stream_end_find(s->view, &s->next);
	if (readers_read(s) || (!s->reopens && stream_is_closed(s->view, s->next)))
		return true;
	if (!has_room(s, s->next))
		return false;
	return !s->starved || sweep(s) || s->nfree;
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
		may |= starved; /* nobody tells when there is memory: a put asks for it */
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

/* Rows that are not passed stay until they are. We hold none of them any more. */
static void blocks_give(struct tl_stream *s)
{
	bool ours = session_is_ours(s->view->session);

	for (unsigned i = 0; i < s->nblocks; i++)
		if (ours)
			draft_free(s->blocks[i].draft);
	free(s->blocks);
	free(s->free);
}

void stream_producer_end(struct tl_stream *s)
{
	if (s->joined) {
		stream_leave(s->view, s->member);
		stream_line_give(s->view, s->line);
	}
	blocks_give(s);
	for (uint32_t i = 0; i < s->nreaders; i++)
		reader_forget(&s->readers[i]);
}
