/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows (blocks) into which a producer writes its items. It looks for a free one (F), asks the
 * daemon for more, and gives back those that are too small or much too large for its items.
 *
 * ORDER: a subscriber counts an item in its ledger before it moves its position, and F reads the
 * positions first, then the ledgers, so F sees the item in one of the two. The daemon sets a row's
 * version before a ledger that F does not read can count the row, so F reads the version last.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/answer.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/stream/producer.h"

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
			    .flags = b->state == BLOCK_LEAVING ? WIRE_RETIRE_FOR_GOOD : 0,
			    .count = 1 },
		     .ref = b->draft->hold.ref };

	b->life = atomic_load(&s->view->session->catalog.header->life);
	session_post(s->view->session, &retire);
}

/* Gives the row to the daemon: for good (LEAVING), or until nobody holds it (AWAY). */
static void send_away(struct tl_stream *s, struct stream_block *b, enum stream_block_state state)
{
	struct session *session = s->view->session;

	pthread_mutex_lock(&session->produce_mutex);
	if (b->draft->hold.held)
		lease_release(session, ref_slot(b->draft->hold.ref));
	b->draft->hold.held = false;
	pthread_mutex_unlock(&session->produce_mutex);
	b->state = state;
	retire_post(s, b);
}

/* Checks whether the row has come back from the daemon. It then has the next generation. */
static void look_for(struct tl_stream *s, struct stream_block *b)
{
	struct session *session = s->view->session;
	uint32_t slot = ref_slot(b->draft->hold.ref);
	uint64_t word = atomic_load(&session->catalog.rows[slot].word);
	uint64_t ref = ref_make(word >> 2, slot);

	if (row_word_state(word) == ROW_LIVE && ref == b->draft->hold.ref) {
		/* a daemon may have read RETIRE, and died before it did it */
		if (b->life != atomic_load(&session->catalog.header->life))
			retire_post(s, b);
		return;
	}
	if (b->state == BLOCK_LEAVING) {
		draft_free(b->draft);
		*b = (struct stream_block){ .state = BLOCK_NONE };
		return;
	}
	if (row_word_state(word) != ROW_LIVE || lease_hold(session, ref))
		return;
	pthread_mutex_lock(&session->produce_mutex);
	b->draft->hold.ref = ref;
	b->draft->hold.held = true;
	pthread_mutex_unlock(&session->produce_mutex);
	b->state = BLOCK_READY;
	b->number = 0;
}

static bool is_free(struct tl_stream *s, struct stream_block *b, uint64_t least,
		    uint64_t least_lossy)
{
	const struct catalog_row *row;
	uint32_t slot;

	if (b->state == BLOCK_AWAY || b->state == BLOCK_LEAVING)
		look_for(s, b);
	if (b->state != BLOCK_READY)
		return false;
	if (!b->number)
		return true;
	slot = ref_slot(b->draft->hold.ref);
	row = &s->view->session->catalog.rows[slot];
	if (!is_passed(s, b, least, least_lossy) || is_held(s, slot))
		return false;
	if (!__atomic_load_n(&row->version, __ATOMIC_SEQ_CST))
		return true;
	send_away(s, b, BLOCK_AWAY);
	return false;
}

/* ---- which sizes are of use ------------------------------------------------------------------ */

enum { WINDOW_MIN = 256 }; /* items */

static uint64_t lower(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t higher(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Notes the size of an item. True: a new window begins, and some blocks may have become useless. A
 * window is long enough to make the cost of replacing a block negligible. */
static bool sizes_note(struct tl_stream *s, uint64_t size)
{
	struct stream_sizes *z = &s->sizes;
	const bool begins = s->next >= z->until;

	if (begins) {
		z->before_least = z->until ? z->least : size;
		z->before_most = z->until ? z->most : size;
		z->least = size;
		z->most = size;
		z->until = s->next + higher(WINDOW_MIN, 4 * (s->view->depth + s->nblocks));
	}
	z->least = lower(z->least, size);
	z->most = higher(z->most, size);
	return begins;
}

static uint64_t most(const struct tl_stream *s)
{
	return higher(s->sizes.most, s->sizes.before_most);
}

/* True if an item of @size would waste most of a block of @capacity bytes. */
static bool is_too_large(uint64_t capacity, uint64_t size)
{
	return capacity / 4 > higher(size, 4096);
}

static bool fits(const struct stream_block *b, uint64_t size)
{
	return b->size >= size && !is_too_large(b->size, size);
}

static bool is_useless(const struct tl_stream *s, const struct stream_block *b)
{
	return b->size < lower(s->sizes.least, s->sizes.before_least) ||
	       is_too_large(b->size, most(s));
}

/* Steps of 1/8 of an octave, so that sizes that differ a little share blocks. */
static uint64_t rounded(uint64_t size)
{
	uint64_t step = 64;

	while (size > step * 16)
		step *= 2;
	return (size + step - 1) / step * step;
}

/* Returns the size of a new block for an item of @size. It fits recent similar items, too. */
static uint64_t block_size(const struct tl_stream *s, uint64_t size)
{
	uint64_t others = rounded(most(s));

	return is_too_large(others, size) ? rounded(size) : others;
}

/* ---- free blocks ----------------------------------------------------------------------------- */

/*
 * Looks at all blocks at once: the lines of the subscribers are fetched once for all of them.
 *
 * ORDER: a worker that joins a queue meanwhile may take an old item, acknowledge it and hold it,
 * while we do not read its ledger. So all is done again if the table of members has changed.
 */
int blocks_sweep(struct tl_stream *s)
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

/* Gives back the free blocks that are useless or, if @size is not 0, that do not fit an item of
 * that size. Returns true if there were any. */
static bool give_back(struct tl_stream *s, uint64_t size)
{
	unsigned kept = 0, n = s->nfree;

	for (unsigned i = 0; i < n; i++) {
		struct stream_block *b = &s->blocks[s->free[i]];

		if (size ? !fits(b, size) : is_useless(s, b))
			send_away(s, b, BLOCK_LEAVING);
		else
			s->free[kept++] = s->free[i];
	}
	s->nfree = kept;
	return kept < n;
}

/* Takes the most recently used of the free blocks that fit an item of @size. */
static bool block_pop(struct tl_stream *s, uint64_t size, unsigned *index)
{
	for (unsigned i = s->nfree; i-- > 0;) {
		if (!fits(&s->blocks[s->free[i]], size))
			continue;
		*index = s->free[i];
		memmove(&s->free[i], &s->free[i + 1], (s->nfree - i - 1) * sizeof(*s->free));
		s->nfree--;
		s->blocks[*index].state = BLOCK_WRITTEN;
		return true;
	}
	return false;
}

void blocks_put_back(struct tl_stream *s, unsigned index)
{
	s->blocks[index].state = BLOCK_READY;
	s->free[s->nfree++] = index;
}

void blocks_published(struct tl_stream *s, unsigned index, uint64_t number)
{
	s->blocks[index].state = BLOCK_READY;
	s->blocks[index].number = number;
}

/* ---- more blocks ----------------------------------------------------------------------------- */

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

/* Returns the index for a new block: the index of a block that has left, or a new one. */
static unsigned block_place(const struct tl_stream *s)
{
	unsigned i = 0;

	while (i < s->nblocks && s->blocks[i].state != BLOCK_NONE)
		i++;
	return i;
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
		return r < 0 ? r : stream_why_gone(s->view);
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
		return stream_why_gone(a->s->view);
	return shared_draft_new(c, use, &a->request, &a->draft);
}

static int block_add(struct tl_stream *s, uint64_t size, unsigned *index)
{
	int64_t shape = (int64_t)size;
	struct adding a = { .s = s,
			    .request = { .name = "",
					 .shape = &shape,
					 .ndim = 1,
					 .dtype = { kDLUInt, 8, 1 },
					 .nbytes = size,
					 .ring = TL_RING_NONE } };
	struct stream_block b = { .state = BLOCK_WRITTEN, .size = size };
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
	draft_sent(a.draft); /* it is a row now, and must not be aborted */
	b.draft = a.draft;
	*index = block_place(s);
	s->blocks[*index] = b;
	if (*index == s->nblocks)
		s->nblocks++;
	return 0;
}

/* block_add(), within max_bytes. */
static int block_allow(struct tl_stream *s, uint64_t size, unsigned *index)
{
	uint64_t bytes = size;

	for (unsigned i = 0; i < s->nblocks; i++)
		if (s->blocks[i].state != BLOCK_NONE)
			bytes += s->blocks[i].size;
	if (s->max_bytes && bytes > s->max_bytes && bytes > size)
		return tl_fail(-ENOSPC, "the items of the stream '%s' may take %llu bytes",
			       s->view->name, (unsigned long long)s->max_bytes);
	return block_add(s, size, index);
}

unsigned blocks_in_use(const struct tl_stream *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->nblocks; i++)
		n += s->blocks[i].state != BLOCK_NONE;
	return n;
}

static bool is_no_room(int r)
{
	return r == -ENOSPC || r == -EDQUOT;
}

/* Gives back the row of the oldest item that is only kept for later subscribers, unless memory is
 * on its way back already. Its generation changes, so that nobody takes what is written there. */
static void keep_less(struct tl_stream *s)
{
	struct stream_block *oldest = NULL;
	uint32_t who;
	uint64_t passed = lower(readers_lowest(s, &who), readers_lowest_lossy(s));

	for (unsigned i = 0; i < s->nblocks; i++) {
		struct stream_block *b = &s->blocks[i];

		if (b->state == BLOCK_AWAY || b->state == BLOCK_LEAVING)
			return;
		if (b->state == BLOCK_READY && b->number && b->number < passed &&
		    (!oldest || b->number < oldest->number) &&
		    !is_held(s, ref_slot(b->draft->hold.ref)))
			oldest = b;
	}
	if (oldest)
		send_away(s, oldest, BLOCK_AWAY);
}

int blocks_find(struct tl_stream *s, uint64_t size, unsigned *index)
{
	uint32_t id;
	int r;

	if (!sizes_note(s, size) && block_pop(s, size, index))
		return 0;
	r = blocks_sweep(s);
	if (r)
		return r;
	give_back(s, 0);
	if (block_pop(s, size, index))
		return 0;
	r = block_allow(s, block_size(s, size), index);
	if (is_no_room(r) && give_back(s, size))
		r = block_allow(s, rounded(size), index);
	s->starved = is_no_room(r) && blocks_in_use(s) &&
		     tl_failure_cause(&id) != TL_CAUSE_TOO_LARGE;
	if (s->starved && s->view->mode == STREAM_BROADCAST)
		keep_less(s);
	return s->starved ? PUT_E_FULL : r;
}

/* The daemon keeps each row whose item somebody may still take. We no longer hold any. */
void blocks_free(struct tl_stream *s)
{
	bool ours = session_is_ours(s->view->session);

	for (unsigned i = 0; i < s->nblocks; i++)
		if (ours && s->blocks[i].state != BLOCK_NONE)
			draft_free(s->blocks[i].draft);
	free(s->blocks);
	free(s->free);
}
