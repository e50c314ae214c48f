/* SPDX-License-Identifier: Apache-2.0 */
/* The order, takes and futexes of a stream's page; see stream_order.h. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/state/catalog.h"
#include "daemon/state/stream_order.h"

#define NUMBER_MAX ((uint64_t)1 << 50)

static uint32_t words_of(const struct stream *s)
{
	return stream_words(s->entry->depth);
}

static _Atomic uint64_t *word_of(const struct stream *s, uint64_t number)
{
	return &s->ring.order->order[number % words_of(s)];
}

/* ---- the end of the order -------------------------------------------------------------------- */

/* Moves *@number on to the first unpublished number, and loads the word in its place. False: the
 * page has nonsense. */
static bool end_find(const struct stream *s, uint64_t *number, uint64_t *word)
{
	uint32_t words = words_of(s);

	if (*number < words || *number > NUMBER_MAX)
		*number = words;
	for (uint32_t i = 0; i <= 2 * words; i++) {
		*word = atomic_load(word_of(s, *number));
		if (stream_word_number(*word) < *number)
			return true;
		*number = stream_word_number(*word) + 1;
		if (*number > NUMBER_MAX)
			return false;
	}
	return false;
}

uint64_t stream_order_end(const struct stream *s)
{
	uint64_t number = atomic_load(&s->ring.order->tail), word;

	return end_find(s, &number, &word) ? number : words_of(s);
}

bool stream_order_is_closed(const struct stream *s, uint64_t end)
{
	for (uint32_t i = 1; i <= words_of(s); i++) {
		uint64_t word = atomic_load(word_of(s, end - i));
		unsigned what = stream_word_what(word);

		if (stream_word_number(word) != end - i)
			break;
		if (what < STREAM_ENDED || what >= STREAM_ENDED + STREAM_MEMBERS)
			return what == STREAM_CLOSED;
	}
	return false;
}

/* ---- which items are wanted ----------------------------------------------------------------- */

uint64_t stream_position(const struct stream *s, uint32_t member, uint64_t word)
{
	const struct client *c = s->members[member].client;

	if (!c || !c->ledger)
		return 0;
	return atomic_load(
		&ledger_line(c->ledger, c->ledger_slots, stream_member_line(word))->position);
}

/* True if a subscriber may still take the item of that number. */
static bool is_wanted(const struct stream *s, uint64_t number, uint64_t end)
{
	uint32_t high = atomic_load(&s->entry->high);
	bool lapped = number + s->entry->depth < end;

	if (number + s->entry->keep >= end)
		return s->entry->keep > 0;
	for (uint32_t i = 0; i < high && i < STREAM_MEMBERS; i++) {
		uint64_t word = atomic_load(&s->entry->members[i].word);
		unsigned role = stream_member_role(word);

		if (stream_member_state(word) == STREAM_LIVE && role & STREAM_SUBSCRIBER &&
		    !(role & STREAM_LOSSY && lapped) && stream_position(s, i, word) <= number)
			return true;
	}
	return false;
}

/* True if the word of an item @words later may replace this word. */
static bool word_is_passed(const struct stream *s, uint64_t word, uint64_t end)
{
	uint64_t number = stream_word_number(word), take;

	if (!number)
		return true;
	if (s->entry->mode != STREAM_QUEUE)
		return !is_wanted(s, number, end);
	if (!stream_word_is_item(word))
		return true;
	take = atomic_load(&s->ring.order->take[stream_word_what(word)]);
	return stream_word_number(take) >= number;
}

bool stream_order_append(struct stream *s, unsigned what)
{
	uint64_t number = atomic_load(&s->ring.order->tail), word;

	for (unsigned tries = 0; tries < 1000; tries++) {
		if (!end_find(s, &number, &word))
			return true; /* nonsense: nobody could follow such an order */
		if (!word_is_passed(s, word, number))
			return false;
		if (atomic_compare_exchange_strong(word_of(s, number), &word,
						   stream_word(number, what))) {
			atomic_store(&s->ring.order->tail, number + 1);
			return true;
		}
	}
	return false; /* a live producer is always faster: try later */
}

bool stream_entry_is_passed(const struct stream *s, unsigned entry)
{
	uint64_t number = *(volatile uint64_t *)&s->ring.order->entries[entry].number, end;

	if (!number || atomic_load(word_of(s, number)) != stream_word(number, entry)) {
		if (s->entry->mode != STREAM_QUEUE)
			return true;
		/* after it was taken, its word may have been replaced */
		return stream_take_who(atomic_load(&s->ring.order->take[entry])) == STREAM_DONE;
	}
	if (s->entry->mode == STREAM_QUEUE)
		return (atomic_load(&s->ring.order->take[entry]) |
			stream_take(0, STREAM_TRIES_MAX, 0)) ==
		       stream_take(number, STREAM_TRIES_MAX, STREAM_DONE);
	end = stream_order_end(s);
	return !is_wanted(s, number, end);
}

uint32_t stream_order_open(const struct stream *s, uint64_t end)
{
	const struct stream_page *page = s->ring.order;
	uint32_t n = 0;

	for (uint32_t i = 1; i <= words_of(s); i++) {
		uint64_t word = atomic_load(word_of(s, end - i));

		n += stream_word_number(word) == end - i && stream_word_is_item(word) &&
		     stream_word_number(atomic_load(&page->take[stream_word_what(word)])) < end - i;
	}
	for (unsigned e = 0; e < STREAM_ENTRIES; e++)
		n += stream_take_who(atomic_load(&page->take[e])) == STREAM_OPEN;
	return n;
}

/* ---- takes ---------------------------------------------------------------------------------- */

static void redo_mark(struct stream_page *page, unsigned entry, bool open)
{
	uint64_t bit = (uint64_t)1 << entry % 64;

	if (open)
		atomic_fetch_or(&page->redo[entry / 64], bit);
	else
		atomic_fetch_and(&page->redo[entry / 64], ~bit);
}

/* Also corrects all bits of `redo`: a former daemon may have died before it marked opened items,
 * and marked items may have been taken. Only the daemon opens items, so none is missed. */
void stream_reopen(struct stream *s, uint32_t member)
{
	struct stream_page *page = s->ring.order;

	for (unsigned e = 0; e < STREAM_ENTRIES; e++) {
		uint64_t take = atomic_load(&page->take[e]), number = stream_word_number(take);
		unsigned tries = stream_take_tries(take);
		bool again = tries < s->entry->max_tries;

		redo_mark(page, e, stream_take_who(take) == STREAM_OPEN);
		if (stream_take_who(take) != member)
			continue;
		if (!atomic_compare_exchange_strong(
			    &page->take[e], &take,
			    again ? stream_take(number, tries + 1, STREAM_OPEN)
				  : stream_take(number, tries, STREAM_DONE)))
			continue; /* it has just been acknowledged */
		if (again)
			redo_mark(page, e, true);
	}
}

/* ---- futexes -------------------------------------------------------------------------------- */

static void wake_all(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, STREAM_MEMBERS, NULL, NULL, 0);
}

void stream_ring(struct stream *s)
{
	atomic_store(&s->ring.order->looker, STREAM_NOBODY);
	wake_all(&s->ring.order->bell);
}

void stream_make_room(struct stream *s)
{
	uint64_t waits = 0;

	for (unsigned i = 0; i < STREAM_MEMBERS / 64; i++)
		waits |= atomic_load(&s->ring.order->waits.bits[i]);
	if (waits)
		wake_all(&s->ring.order->room);
}

void stream_bits_clear(struct stream *s, uint32_t member)
{
	uint64_t others = ~((uint64_t)1 << member % 64);

	atomic_fetch_and(&s->ring.order->sleeps.bits[member / 64], others);
	atomic_fetch_and(&s->ring.order->waits.bits[member / 64], others);
}
