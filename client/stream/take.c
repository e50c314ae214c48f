/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subscribers. A take leases the item's row as a get leases a tensor (S2), maps it, and then moves
 * its position on (S3); until then the position holds the item.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "client/checks.h"
#include "client/connection/process.h"
#include "client/connection/socket.h"
#include "client/error.h"
#include "client/read/shared_lease.h"
#include "client/stream/stream.h"
#include "util/clock.h"

enum {
	TAKE_E_NONE = 1 << 9, /* there is no item */
	TAKE_E_AGAIN,	      /* look again at once */
};

/* ---- leases ---------------------------------------------------------------------------------- */

/* Reads the entry of item @number. False: the entry has another item by now. */
static bool entry_read(const struct stream_view *view, unsigned index, uint64_t number,
		       struct stream_entry *entry)
{
	*entry = *(const volatile struct stream_entry *)&view->page->entries[index];
	atomic_thread_fence(memory_order_acquire);
	return entry->number == number;
}

/* True if the row is the stream's and has that entry. Only the daemon writes what this reads. */
static bool row_is_of(const struct stream_view *view, uint64_t ref, unsigned index)
{
	const struct catalog_row *row = &view->session->catalog.rows[ref_slot(ref)];

	return load_once(&row->flags) & ROW_RING &&
	       load_once(&row->ring) == ring_slot_make(view->ref, index);
}

/* Maps a row that @use has leased. For the first row of a segment this asks the daemon. */
static int row_map(const struct use *use, uint64_t ref, DLManagedTensorVersioned **out)
{
	static const tl_get_options options = { .size = sizeof(options), .mode = TL_MODE_READ };
	struct session *s = use->session;
	struct row_head head = row_head(&s->catalog.rows[ref_slot(ref)]);
	struct get_until until;
	int r = LEASE_E_UNMAPPED;

	if (head.segment < s->catalog.slots && head.segment_generation)
		r = shared_lease_mapped(use, ref, &head, out);
	if (__builtin_expect(r != LEASE_E_UNMAPPED, 1))
		return r;
	until.answer = until.work = session_deadline(s);
	do
		r = shared_lease(use, ref, &head, &options, until, out);
	while (r == LEASE_E_STALE && lease_stands(s, ref) && !deadline_passed(until.answer));
	return r;
}

/* S2: leases the row and maps it. TAKE_E_AGAIN: the row is gone or has another generation. */
static int row_lease(struct stream_view *view, unsigned index, const struct stream_entry *entry,
		     DLManagedTensorVersioned **out)
{
	struct session *s = view->session;
	struct use use = { .session = s };
	int r;

	if (ref_slot(entry->ref) >= s->catalog.slots || entry->ref & REF_RING)
		return TAKE_E_AGAIN;
	if (!use_count_enter(&s->users))
		return tl_fail(-ECANCELED, "the client of the stream '%s' is closed", view->name);
	while ((r = lease_hold(s, entry->ref)) == LEASE_E_FORKING)
		process_wait_fork();
	if (!r) {
		r = row_is_of(view, entry->ref, index) ? row_map(&use, entry->ref, out)
						       : LEASE_E_STALE;
		if (!r)
			return 0; /* the tensor has the lease and the count */
		lease_release(s, ref_slot(entry->ref));
	}
	client_leave(&use);
	if (r == LEASE_E_TOO_MANY)
		return tl_fail(-EOVERFLOW, "an item of the stream '%s' is held too often",
			       view->name);
	return r < 0 ? r : TAKE_E_AGAIN;
}

static void row_give(DLManagedTensorVersioned *row)
{
	row->deleter(row);
}

/* Leases the tensor with the parts on a GPU, if there is one. Fails as
 * row_lease() does, or with -ENODATA: the tensor ended with its producer. */
static int device_lease(const struct tl_subscription *sub, const struct stream_entry *entry,
			DLManagedTensorVersioned **out)
{
	const tl_get_options o = { .size = sizeof(o), .stream = sub->stream };
	struct session *s = sub->view->session;
	struct use use = { .session = s };
	struct get_until until;
	int r;

	*out = NULL;
	if (!entry->device_ref)
		return 0;
	if (ref_slot(entry->device_ref) >= s->catalog.slots || entry->device_ref & REF_RING ||
	    !use_count_enter(&s->users))
		return TAKE_E_AGAIN;
	while ((r = lease_hold(s, entry->device_ref)) == LEASE_E_FORKING)
		process_wait_fork();
	if (!r) {
		until.answer = until.work = session_deadline(s);
		r = tensor_lease_new(&use, entry->device_ref, &o, until, out);
		if (!r)
			return 0;
		lease_release(s, ref_slot(entry->device_ref));
	}
	client_leave(&use);
	if (r == LEASE_E_LOST)
		return tl_fail(
			-ENODATA,
			"item %llu of the stream '%s' is lost: its memory on a GPU went with "
			"its producer, or was never finished",
			(unsigned long long)entry->number, sub->view->name);
	return r < 0 ? r : TAKE_E_AGAIN;
}

/* S2: leases all of an item. */
static int item_lease(const struct tl_subscription *sub, unsigned index,
		      const struct stream_entry *entry, DLManagedTensorVersioned **row,
		      DLManagedTensorVersioned **device)
{
	int r = row_lease(sub->view, index, entry, row);

	if (r)
		return r;
	r = device_lease(sub, entry, device);
	if (r)
		row_give(*row);
	return r;
}

static void item_give(DLManagedTensorVersioned *row, DLManagedTensorVersioned *device)
{
	if (device)
		row_give(device);
	row_give(row);
}

/* ---- broadcast ------------------------------------------------------------------------------- */

static void move_to(struct tl_subscription *sub, uint64_t number)
{
	sub->next = number;
	atomic_store(sub->position, number); /* S3 */
	stream_tell_room(sub->view);	     /* S5 */
}

/* A lossy subscriber was lapped: go on at the oldest item that may still be there. */
static int skip(struct tl_subscription *sub)
{
	uint64_t end = sub->next, oldest;

	stream_end_find(sub->view, &end);
	oldest = end - sub->view->depth;
	if (oldest <= sub->next)
		oldest = sub->next + 1;
	sub->skipped += oldest - sub->next;
	move_to(sub, oldest);
	return TAKE_E_AGAIN;
}

static bool is_lapped(const struct tl_subscription *sub, uint64_t number)
{
	const struct stream_view *view = sub->view;
	uint64_t later = number + view->depth;

	return stream_word_number(atomic_load(stream_word_at(view, later))) >= later;
}

static int item_missing(const struct stream_view *view, uint64_t number)
{
	return tl_fail(
		-EPROTO,
		"item %llu of the stream '%s' is not there: a producer has damaged the stream",
		(unsigned long long)number, view->name);
}

/* Says why the item cannot be taken: the stream is over, or we are no longer a subscriber. If
 * neither is the case, skips the item if we are lossy, and otherwise reports damage. */
static int why_not(struct tl_subscription *sub, uint64_t number)
{
	int r = stream_usable(sub->view);

	if (r)
		return r;
	if (!stream_member_is(sub->view, sub->member, sub->member_word)) {
		r = session_kicked(sub->view->session);
		if (!r)
			r = tl_fail(-ESTALE, "this subscription to '%s' was ended",
				    sub->view->name);
		return r;
	}
	if (sub->lossy)
		return skip(sub);
	move_to(sub, number + 1);
	if (number < sub->since) /* a kept item, whose memory a producer needed */
		return TAKE_E_AGAIN;
	return item_missing(sub->view, number);
}

static int item_at(struct tl_subscription *sub, uint64_t number, unsigned index, tl_item **out)
{
	DLManagedTensorVersioned *row = NULL, *device = NULL;
	struct stream_entry entry;
	int r;

	if (!entry_read(sub->view, index, number, &entry))
		return why_not(sub, number);
	r = item_lease(sub, index, &entry, &row, &device);
	if (r == -ENODATA)
		move_to(sub, number + 1);
	if (r)
		return r == TAKE_E_AGAIN ? why_not(sub, number) : r;
	move_to(sub, number + 1);
	if (!stream_member_is(sub->view, sub->member, sub->member_word) ||
	    (sub->lossy && is_lapped(sub, number))) { /* S4 */
		item_give(row, device);
		stream_tell_room(sub->view);
		if (!sub->lossy || stream_usable(sub->view) ||
		    !stream_member_is(sub->view, sub->member, sub->member_word))
			return why_not(sub, number);
		sub->skipped++;
		return TAKE_E_AGAIN;
	}
	r = item_make(sub->view, row, device, &entry, out);
	if (r) {
		item_give(row, device);
		stream_tell_room(sub->view);
		return r;
	}
	(*out)->skipped = sub->skipped;
	sub->skipped = 0;
	return 0;
}

/* True if the CLOSED word at @number is still the end. */
static bool is_over(const struct stream_view *view, uint64_t number)
{
	uint64_t end = number;

	stream_end_find(view, &end);
	return stream_closed_at(view, end);
}

static int ended(const struct stream_view *view)
{
	return tl_fail(-EPIPE, "the stream '%s' was ended, and all of it was taken", view->name);
}

static int broadcast_take(struct tl_subscription *sub, tl_item **out)
{
	uint64_t word = atomic_load(stream_word_at(sub->view, sub->next)); /* S1 */
	uint64_t number = stream_word_number(word);

	if (number < sub->next)
		return TAKE_E_NONE;
	if (number > sub->next)
		return sub->lossy ? skip(sub) : why_not(sub, sub->next);
	if (stream_word_is_item(word))
		return item_at(sub, number, stream_word_what(word), out);
	if (stream_word_what(word) == STREAM_CLOSED && is_over(sub->view, number))
		return ended(sub->view);
	move_to(sub, number + 1);
	return TAKE_E_AGAIN;
}

/* ---- queue ----------------------------------------------------------------------------------- */

/* An item that nobody has taken, according to @take, could not be leased. If the take word is still
 * @take, a producer has damaged the stream: a row goes only after its take word has changed. */
static int queue_why_not(struct tl_subscription *sub, const struct stream_entry *entry,
			 uint64_t number, unsigned index, uint64_t take)
{
	struct stream_view *view = sub->view;
	const struct catalog_view *c = &view->session->catalog;
	uint32_t slot = ref_slot(entry->ref);
	int r = stream_usable(view);

	if (r)
		return r;
	if (entry->number == number && slot < c->slots && row_is_of(view, entry->ref, index) &&
	    atomic_load(&c->rows[slot].word) == row_word(ref_generation(entry->ref), ROW_LIVE))
		return TAKE_E_AGAIN;
	if (!atomic_compare_exchange_strong(
		    &view->page->take[index], &take,
		    stream_take(number, stream_take_tries(take), STREAM_DONE)))
		return TAKE_E_AGAIN;
	stream_tell_room(view);
	return item_missing(view, number);
}

/* W1 and W2: takes the item in that entry, whose take word was @take. */
static int queue_take_item(struct tl_subscription *sub, uint64_t number, unsigned index,
			   uint64_t take, tl_item **out)
{
	struct stream_view *view = sub->view;
	uint64_t mine = stream_take(
		number, stream_word_number(take) == number ? stream_take_tries(take) : 0,
		sub->member);
	DLManagedTensorVersioned *row = NULL, *device = NULL;
	struct stream_entry entry;
	int r;

	if (!stream_member_is(view, sub->member, sub->member_word))
		return why_not(sub, number);
	r = entry_read(view, index, number, &entry)
		    ? item_lease(sub, index, &entry, &row, &device) /* W1 */
		    : TAKE_E_AGAIN;
	if (r == -ENODATA)
		atomic_compare_exchange_strong(
			&view->page->take[index], &take,
			stream_take(number, stream_take_tries(take), STREAM_DONE));
	if (r)
		return r == TAKE_E_AGAIN ? queue_why_not(sub, &entry, number, index, take) : r;
	if (!atomic_compare_exchange_strong(&view->page->take[index], &take, mine)) { /* W2 */
		item_give(row, device);
		stream_tell_room(view);
		return TAKE_E_AGAIN;
	}
	r = item_make(view, row, device, &entry, out);
	if (r) { /* with EPROTO nobody can read it */
		if (r == -EPROTO)
			atomic_compare_exchange_strong(
				&view->page->take[index], &mine,
				stream_take(number, stream_take_tries(mine), STREAM_DONE));
		item_give(row, device);
		stream_tell_room(view);
		return r;
	}
	(*out)->take = mine;
	(*out)->entry = index;
	stream_tell_room(view);
	return 0;
}

/* W3: takes the oldest item that the daemon has opened again. */
static int redo_take(struct tl_subscription *sub, tl_item **out)
{
	struct stream_page *page = sub->view->page;
	uint64_t oldest = UINT64_MAX, found = 0;
	unsigned index = 0;

	for (unsigned i = 0; i < STREAM_ENTRIES / 64; i++) {
		uint64_t bits = atomic_load(&page->redo[i]);

		for (; bits; bits &= bits - 1) {
			unsigned e = i * 64 + (unsigned)__builtin_ctzll(bits);
			uint64_t take = atomic_load(&page->take[e]);

			if (stream_take_who(take) == STREAM_OPEN &&
			    stream_word_number(take) < oldest) {
				oldest = stream_word_number(take);
				found = take;
				index = e;
			}
		}
	}
	if (oldest == UINT64_MAX)
		return TAKE_E_NONE;
	return queue_take_item(sub, oldest, index, found, out);
}

enum queue_next {
	QUEUE_NOTHING = 0,
	QUEUE_ITEM, /* an item that nobody has taken */
	QUEUE_END,  /* the end of the stream */
};

/* What queue_find() saw: the item's entry and its take word. */
struct queue_look {
	unsigned index;
	uint64_t take;
};

/* Moves *@n on to the first item that nobody has taken, or to the end. */
static enum queue_next queue_find(const struct stream_view *view, uint64_t *n,
				  struct queue_look *look)
{
	for (;; ++*n) {
		uint64_t word = atomic_load(stream_word_at(view, *n));
		uint64_t number = stream_word_number(word);
		unsigned what = stream_word_what(word);

		if (number < *n)
			return QUEUE_NOTHING;
		if (number >= *n + view->words) /* we are lapped: go on at the oldest word */
			*n = number - view->words;
		if (number > *n)
			continue;
		if (what == STREAM_CLOSED && is_over(view, number))
			return QUEUE_END;
		if (!stream_word_is_item(word))
			continue;
		look->index = what;
		look->take = atomic_load(&view->page->take[what]);
		if (stream_word_number(look->take) < number)
			return QUEUE_ITEM;
	}
}

static int queue_take_next(struct tl_subscription *sub, tl_item **out)
{
	struct queue_look look;

	switch (queue_find(sub->view, &sub->next, &look)) {
	case QUEUE_ITEM:
		return queue_take_item(sub, sub->next, look.index, look.take, out);
	case QUEUE_END:
		return ended(sub->view);
	default:
		return TAKE_E_NONE;
	}
}

/* True if enough items wait that another worker should help, even if we are quick. */
static bool queue_is_behind(const struct tl_subscription *sub)
{
	uint64_t number = sub->next + sub->view->depth / 4 + 1;

	return stream_word_number(atomic_load(stream_word_at(sub->view, number))) >= number;
}

/* A quick worker comes back sooner than this, which is sooner than another one could be woken. */
#define QUICK_NS (20 * NS_PER_US)

/* W4. A quick worker stays the looker while it works. If it does not come back, workers that sleep
 * meanwhile soon wake by themselves and look: see wait_for_item(). */
static void leave_the_rest(struct tl_subscription *sub, bool took)
{
	struct stream_page *page = sub->view->page;
	uint32_t me = sub->member + 1;
	uint64_t next = sub->next;
	struct queue_look look;

	if (took && sub->quick && !queue_is_behind(sub))
		return;
	if (atomic_load(&page->looker) == me)
		atomic_compare_exchange_strong(&page->looker, &me, STREAM_NOBODY);
	if (stream_bits_any(&page->sleeps) && queue_find(sub->view, &next, &look) == QUEUE_ITEM)
		stream_wake_worker(sub->view);
}

static void looker_leaves(struct tl_subscription *sub)
{
	uint32_t who = atomic_load(&sub->view->page->looker);

	if (who == sub->member + 1 || who == STREAM_COMING)
		atomic_compare_exchange_strong(&sub->view->page->looker, &who, STREAM_NOBODY);
}

static int queue_take(struct tl_subscription *sub, tl_item **out)
{
	int r = redo_take(sub, out);

	if (r == TAKE_E_NONE)
		r = queue_take_next(sub, out);
	return r;
}

/* ---- taking and waiting ---------------------------------------------------------------------- */

static int take_now(struct tl_subscription *sub, tl_item **out)
{
	int r;

	do
		r = sub->view->mode == STREAM_QUEUE ? queue_take(sub, out)
						    : broadcast_take(sub, out);
	while (r == TAKE_E_AGAIN);
	if (!r && sub->view->mode == STREAM_QUEUE)
		leave_the_rest(sub, true);
	return r;
}

/* Spins for a while. Of a queue's workers only the looker does. */
static int take_spinning(struct tl_subscription *sub, tl_item **out)
{
	uint32_t nobody = STREAM_NOBODY;
	int r = TAKE_E_NONE;

	if (sub->view->mode == STREAM_QUEUE &&
	    !atomic_compare_exchange_strong(&sub->view->page->looker, &nobody, sub->member + 1) &&
	    nobody != sub->member + 1)
		return r;
	while (r == TAKE_E_NONE && spin_again(&sub->spin))
		r = take_now(sub, out);
	return r;
}

static int wait_for_item(struct tl_subscription *sub, struct call *c, tl_item **out)
{
	struct stream_page *page = sub->view->page;
	bool queue = sub->view->mode == STREAM_QUEUE;
	uint32_t bell = atomic_load(&page->bell); /* Z1 */
	int r;

	stream_bit_set(&page->sleeps, sub->member, &sub->sleepers); /* Z2 */
	if (queue)
		looker_leaves(sub);
	r = take_now(sub, out); /* Z3 */
	if (r == TAKE_E_NONE) {
		r = stream_usable(sub->view);
		if (!r && !stream_member_is(sub->view, sub->member, sub->member_word))
			r = why_not(sub, sub->next);
	}
	if (!r && !*out) {
		/* sleep briefly beside a looker, which may have stopped */
		bool soon = queue && atomic_load(&page->looker) != STREAM_NOBODY;

		r = stream_sleep(c, sub->view, &page->bell, bell, soon); /* Z4 */
		r = r ? r : TAKE_E_NONE;
	}
	stream_bit_clear(&page->sleeps, sub->member, &sub->sleepers, &page->bell); /* Z5 */
	if (queue)
		atomic_store(&page->looker, sub->member + 1);
	return r == TAKE_E_NONE ? take_now(sub, out) : r; /* we were probably woken for an item */
}

/* P3 has woken only one worker of the queue; the others must learn of the end, too. */
static void tell_the_end(struct tl_subscription *sub)
{
	struct stream_page *page = sub->view->page;

	if (sub->view->mode != STREAM_QUEUE)
		return;
	looker_leaves(sub);
	if (stream_bits_any(&page->sleeps))
		stream_wake(&page->bell, INT_MAX);
}

static int take_locked(struct tl_subscription *sub, const tl_wait_options *o, tl_item **out)
{
	struct call c;
	int r = take_now(sub, out);

	if (r != TAKE_E_NONE)
		return r;
	r = stream_usable(sub->view);
	if (r)
		return r;
	if (!o->timeout_ns)
		return tl_fail(-EAGAIN, "the stream '%s' has no further item", sub->view->name);
	c = stream_call(sub->view, o->timeout_ns, o->interrupt, o->interrupt_value);
	spin_begin(&sub->spin);
	r = take_spinning(sub, out);
	while (r == TAKE_E_NONE)
		r = wait_for_item(sub, &c, out);
	spin_end(&sub->spin);
	if (r == -EPIPE)
		tell_the_end(sub);
	else if (r && sub->view->mode == STREAM_QUEUE)
		leave_the_rest(sub, false);
	if (r == -ETIMEDOUT)
		return tl_fail(r, "no further item of the stream '%s' came in time",
			       sub->view->name);
	return r;
}

TL_API int tl_stream_take(tl_subscription *sub, const tl_wait_options *options, tl_item **out)
{
	tl_wait_options o;
	tl_item *item = NULL;
	int r;

	if (!sub || !out)
		return tl_fail(-EINVAL, "tl_stream_take: %s is NULL", sub ? "out" : "subscription");
	r = client_wait_options(&o, options);
	if (!r)
		r = stream_check_ours(sub->view);
	if (r)
		return r;
	pthread_mutex_lock(&sub->mutex);
	if (sub->view->mode == STREAM_QUEUE)
		sub->quick = now_mono_ns() - sub->took_ns < QUICK_NS;
	r = take_locked(sub, &o, &item);
	if (sub->view->mode == STREAM_QUEUE)
		sub->took_ns = now_mono_ns();
	pthread_mutex_unlock(&sub->mutex);
	if (r == -EAGAIN || r == -ETIMEDOUT)
		notifier_again(&sub->notifier);
	if (!r)
		*out = item;
	return r;
}

/* ---- the descriptor -------------------------------------------------------------------------- */

static bool redo_any(const struct stream_page *page)
{
	for (unsigned i = 0; i < STREAM_ENTRIES / 64; i++)
		for (uint64_t bits = atomic_load(&page->redo[i]); bits; bits &= bits - 1)
			if (stream_take_who(atomic_load(
				    &page->take[i * 64 + (unsigned)__builtin_ctzll(bits)])) ==
			    STREAM_OPEN)
				return true;
	return false;
}

/* True if a take would not wait: it succeeds or fails at once. */
static bool take_may_go(struct tl_subscription *sub)
{
	const struct stream_view *view = sub->view;
	struct queue_look look;
	uint64_t next;

	if (stream_usable(view) || !stream_member_is(view, sub->member, sub->member_word))
		return true;
	if (view->mode == STREAM_QUEUE)
		return redo_any(view->page) || queue_find(view, &sub->looked, &look);
	next = atomic_load(sub->position);
	return stream_word_number(atomic_load(stream_word_at(view, next))) >= next;
}

/* The notifier's thread takes no items: it lets another worker become the looker. */
static void wake_was_not_for_us(struct stream_page *page)
{
	uint32_t coming = STREAM_COMING;

	atomic_compare_exchange_strong(&page->looker, &coming, STREAM_NOBODY);
}

void subscription_notifier_wait(struct notifier *n)
{
	struct tl_subscription *sub = container_of(n, struct tl_subscription, notifier);
	struct stream_page *page = sub->view->page;
	bool queue = sub->view->mode == STREAM_QUEUE, may = take_may_go(sub);
	struct call c = stream_call(sub->view, -1, (const uint32_t *)&n->task, NOTIFIER_WAITS);
	int r = 0;

	while (!may && !r) {
		uint32_t bell = atomic_load(&page->bell); /* Z1 */

		stream_bit_set(&page->sleeps, sub->member, &sub->sleepers); /* Z2 */
		wake_was_not_for_us(page);
		may = take_may_go(sub); /* Z3 */
		if (!may) {
			bool soon = queue && atomic_load(&page->looker) != STREAM_NOBODY;

			r = stream_sleep(&c, sub->view, &page->bell, bell, soon); /* Z4 */
		}
		stream_bit_clear(&page->sleeps, sub->member, &sub->sleepers, &page->bell);
		if (may)
			wake_was_not_for_us(page);
	}
}

TL_API int tl_subscription_fd(tl_subscription *sub, int *fd)
{
	int r;

	if (!sub || !fd)
		return tl_fail(-EINVAL, "tl_subscription_fd: %s is NULL",
			       sub ? "fd" : "subscription");
	r = stream_check_ours(sub->view);
	if (!r)
		r = notifier_start(&sub->notifier, sub->view->name);
	if (!r)
		*fd = sub->notifier.fd;
	return r;
}
