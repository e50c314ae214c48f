/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams whose members die. Producers and subscribers of four streams are killed at random
 * moments, and so is the daemon now and then, whose keeper starts another one. Whoever lives gets
 * each item as it was put and in order, a queue's items are acknowledged once, and nobody waits for
 * the dead. TL_KILLS says how many are killed, TL_TEST_SEED what the random numbers start from.
 *
 * What happened stands in memory that all processes share. An incarnation is one handle that puts:
 * a producer that was killed, or has closed its stream, goes on as another one.
 */
#include <sys/mman.h>
#include <time.h>

#include "tests/crash/streams.h"
#include "tests/harness/messages.h"
#include "tests/harness/number.h"
#include "tests/harness/process.h"
#include "tests/harness/seed.h"

enum {
	KILLS = 150,
	STOPS = 100,
	LONGEST_US = 30000,
	STREAMS = 4,
	PRODUCERS = 2,
	SUBSCRIBERS = 3,
	MEMBERS = PRODUCERS + SUBSCRIBERS,
	CHILDREN = STREAMS * MEMBERS,
	INCARNATIONS = 32768, /* of long storms: memory is used for those that there are */
	SEQUENCES = 8192,     /* items of one of them */
	HELD = 5,
	WORDS_MAX = 200 * 1024 / 8,
};

static const struct kind {
	const char *name;
	tl_stream_options options;
	uint64_t words_max;
} kinds[STREAMS] = {
	{ "deep", { .mode = TL_STREAM_BROADCAST, .depth = 64, .keep = 16 }, WORDS_MAX },
	{ "flat", { .mode = TL_STREAM_BROADCAST, .depth = 2 }, 4096 },
	{ "work", { .mode = TL_STREAM_QUEUE, .depth = 32, .max_tries = 15 }, WORDS_MAX },
	{ "jobs", { .mode = TL_STREAM_QUEUE, .depth = 3, .max_tries = 15 }, 512 },
};

/* ---- what happened --------------------------------------------------------------------------- */

struct fact {
	_Atomic uint64_t number; /* the item's, as whoever knows it has found */
	_Atomic uint32_t taken;
	_Atomic uint16_t about, done; /* how often it was, or was about to be, acknowledged */
};

struct incarnation {
	_Atomic uint32_t stream, producer;
	_Atomic uint64_t put; /* how many puts have returned 0 */
};

struct board {
	_Atomic uint32_t begun; /* incarnations; they begin at 1 */
	_Atomic bool stop;
	_Atomic uint64_t taken[STREAMS], again[STREAMS];
	_Atomic int64_t slowest_put_ns, slowest_take_ns;
	struct incarnation incarnations[INCARNATIONS];
	struct fact facts[INCARNATIONS][SEQUENCES];
};

static struct board *board_new(void)
{
	struct board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(b != MAP_FAILED);
	atomic_store(&b->begun, 1);
	return b;
}

static void note_wait(_Atomic int64_t *slowest, int64_t began)
{
	int64_t ns = now_ns() - began, before = atomic_load(slowest);

	while (ns > before && !atomic_compare_exchange_weak(slowest, &before, ns))
		;
}

/* A member of a stream; its address is the child's argument. */
struct part {
	struct board *board;
	unsigned stream, index;
	uint64_t x; /* random numbers */
};

static uint64_t below(uint64_t *x, uint64_t limit)
{
	return samples_random(x) % limit;
}

static tl_client *join(const struct test_daemon *d)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->socket,
				 .timeout_ns = WAIT_S * SECOND };
	tl_client *client = NULL;

	eventually(!tl_connect(&o, &client)); /* the daemon may just have been killed */
	return client;
}

static tl_stream *open_kind(tl_client *client, unsigned stream)
{
	tl_stream_options o = kinds[stream].options;
	tl_stream *s = NULL;

	o.size = sizeof(o);
	must_be(tl_stream_open(client, kinds[stream].name, &o, &s), 0);
	return s;
}

/* ---- items ----------------------------------------------------------------------------------- */

struct seen {
	tl_item *item;
	uint32_t incarnation;
	uint64_t sequence;
	tl_item_info info;
	bool done;
};

/* All bytes are as they were put. */
static void item_check(const struct seen *seen, unsigned stream)
{
	const char *name = NULL;
	const DLTensor *t = tl_item_tensor(seen->item, 0, &name);
	const uint64_t *words = t->data;
	uint64_t n = (uint64_t)t->shape[0];

	must(!strcmp(name, "all") && t->ndim == 1 && n >= ITEM_HEAD);
	must_be(words[0], stream);
	must_be(words[1], seen->incarnation);
	must_be(words[2], seen->sequence);
	must_be(words[3], n);
	for (uint64_t i = 4; i < n; i++)
		must_be(words[i], pattern(seen->incarnation, seen->sequence, i));
	must_be(seen->info.metadata_size, ITEM_HEAD * sizeof(*words));
	must(!memcmp(seen->info.metadata, words, ITEM_HEAD * sizeof(*words)));
	must_be(seen->info.count, seen->sequence % 2 ? 2 : 1);
	if (seen->info.count < 2)
		return;
	t = tl_item_tensor(seen->item, 1, &name);
	must(!name && t->shape[0] == ITEM_HEAD &&
	     !memcmp(t->data, words, ITEM_HEAD * sizeof(*words)));
}

static struct fact *fact_of(struct board *b, const struct seen *seen)
{
	return &b->facts[seen->incarnation][seen->sequence];
}

/* Whoever knows an item's number knows the same one. */
static void note_number(struct fact *fact, uint64_t number)
{
	uint64_t before = 0;

	if (!atomic_compare_exchange_strong(&fact->number, &before, number))
		must_be(number, before);
}

static void seen_fill(struct board *b, unsigned stream, tl_item *item, struct seen *seen)
{
	const uint64_t *words = tl_item_tensor(item, 0, NULL)->data;

	*seen = (struct seen){ .item = item, .info.size = sizeof(seen->info) };
	must_be(tl_item_get_info(item, &seen->info), 0);
	must(words[1] < atomic_load(&b->begun) && words[2] < SEQUENCES);
	seen->incarnation = (uint32_t)words[1];
	seen->sequence = words[2];
	must_be(b->incarnations[seen->incarnation].stream, stream);
	item_check(seen, stream);
	note_number(fact_of(b, seen), seen->info.number);
}

/* ---- producers ------------------------------------------------------------------------------- */

static uint32_t incarnation_begin(const struct part *p)
{
	uint32_t i = atomic_fetch_add(&p->board->begun, 1);

	must(i < INCARNATIONS);
	p->board->incarnations[i].stream = p->stream;
	p->board->incarnations[i].producer = p->index;
	return i;
}

static int64_t some_size(struct part *p)
{
	uint64_t limit = kinds[p->stream].words_max >> below(&p->x, 10);

	return (int64_t)(ITEM_HEAD + (limit > ITEM_HEAD ? below(&p->x, limit - ITEM_HEAD) : 0));
}

static void produce_as(struct part *p, tl_stream *s, uint32_t incarnation, uint64_t count)
{
	static uint64_t words[WORDS_MAX];
	struct incarnation *me = &p->board->incarnations[incarnation];
	uint64_t number = 0;

	for (uint64_t i = 0; i < count && !atomic_load(&p->board->stop); i++) {
		int64_t n = some_size(p), began;

		words_fill(words, (uint64_t)n, p->stream, incarnation, i);
		began = now_ns();
		must_be(put_words(s, words, n, patience(), &number), 0);
		note_wait(&p->board->slowest_put_ns, began);
		note_number(&p->board->facts[incarnation][i], number);
		atomic_store(&me->put, i + 1);
	}
}

static int produce(const struct test_daemon *d, void *arg)
{
	struct part *p = arg;

	while (!atomic_load(&p->board->stop)) {
		tl_client *client = join(d);

		for (uint64_t lives = 1 + below(&p->x, 4); lives; lives--) {
			tl_stream *s = open_kind(client, p->stream);

			produce_as(p, s, incarnation_begin(p), 1 + below(&p->x, SEQUENCES / 4));
			must_be(tl_stream_close(s), 0);
		}
		tl_close(client);
	}
	return 0;
}

/* ---- subscribers ----------------------------------------------------------------------------- */

/* What a subscriber of a broadcast has seen of one producer. */
struct progress {
	uint32_t incarnation;
	uint64_t next; /* sequence */
	bool skipped;  /* some, since then */
};

struct reader {
	struct part *part;
	tl_subscription *sub;
	bool lossy, over;
	uint32_t begun; /* incarnations from here on are seen from their first item on */
	uint64_t number;
	struct progress of[PRODUCERS];
	struct seen held[HELD];
};

/* It has ended, and all of its items were seen. One that was killed may have put one more. */
static void must_be_complete(const struct reader *r, uint32_t incarnation, uint64_t next)
{
	uint64_t put = r->part->board->incarnations[incarnation].put;

	if (next < put || next > put + 1)
		print_error("incarnation %u: %llu of %llu%s\n", incarnation,
			    (unsigned long long)next, (unsigned long long)put,
			    r->lossy ? ", lossy" : "");
	must(next >= put && next <= put + 1);
}

/* This producer has gone on as @now, so that all before was seen. */
static void incarnations_end(struct reader *r, unsigned producer, uint32_t now)
{
	struct board *b = r->part->board;
	struct progress *of = &r->of[producer];

	if (of->incarnation && !of->skipped)
		must_be_complete(r, of->incarnation, of->next);
	for (uint32_t i = r->begun > of->incarnation ? r->begun : of->incarnation + 1; i < now; i++)
		if (b->incarnations[i].stream == r->part->stream &&
		    b->incarnations[i].producer == producer && !of->skipped)
			must_be_complete(r, i, 0);
}

/* An item comes after the one that was seen last. */
static void note_progress(struct reader *r, const struct seen *seen)
{
	unsigned producer = r->part->board->incarnations[seen->incarnation].producer;
	struct progress *of = &r->of[producer];
	uint64_t skipped = seen->info.skipped;

	must(r->lossy || !skipped);
	must(seen->info.number > r->number);
	must(!r->number || skipped < seen->info.number - r->number);
	r->number = seen->info.number;
	for (unsigned i = 0; skipped && i < PRODUCERS; i++)
		r->of[i].skipped = true;
	must(seen->incarnation >= of->incarnation);
	if (seen->incarnation > of->incarnation) {
		incarnations_end(r, producer, seen->incarnation);
		if (seen->incarnation >= r->begun && !of->skipped)
			must_be(seen->sequence, 0);
	} else if (of->skipped) {
		must(seen->sequence >= of->next);
	} else {
		must_be(seen->sequence, of->next);
	}
	*of = (struct progress){ .incarnation = seen->incarnation, .next = seen->sequence + 1 };
}

/* The stream was ended, and all producers had ended before. */
static void all_was_seen(struct reader *r)
{
	r->over = true;
	if (kinds[r->part->stream].options.mode == TL_STREAM_BROADCAST && !r->lossy)
		for (unsigned i = 0; i < PRODUCERS; i++)
			incarnations_end(r, i, atomic_load(&r->part->board->begun));
}

/* Acknowledges it; @gone: its subscription was closed before. */
static void acknowledge(struct board *b, struct seen *seen, int (*how)(tl_item *), bool gone)
{
	struct fact *fact = fact_of(b, seen);
	int r;

	if (!gone && !seen->done)
		atomic_fetch_add(&fact->about, 1);
	r = how(seen->item);
	must_be(r, gone && !seen->done ? -ESTALE : 0);
	if (!gone && !seen->done)
		atomic_fetch_add(&fact->done, 1);
	seen->done = true;
}

static void let_go(struct reader *r, struct seen *seen, bool gone)
{
	struct part *p = r->part;

	if (!seen->item)
		return;
	item_check(seen, p->stream);
	if (kinds[p->stream].options.mode == TL_STREAM_QUEUE)
		acknowledge(p->board, seen, tl_item_release, gone);
	else
		must_be(tl_item_release(seen->item), 0);
	seen->item = NULL;
}

static void note_taken(struct reader *r, struct seen *seen)
{
	struct board *b = r->part->board;
	uint32_t before = atomic_fetch_add(&fact_of(b, seen)->taken, 1);

	atomic_fetch_add(&b->taken[r->part->stream], 1);
	if (!before)
		return;
	atomic_fetch_add(&b->again[r->part->stream], 1);
	must(seen->info.tries > 0);
	must_be(fact_of(b, seen)->done, 0);
}

static void take_one(struct reader *r)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = patience() };
	struct part *p = r->part;
	struct seen *seen = &r->held[below(&p->x, HELD)];
	int64_t began = now_ns();
	tl_item *item = NULL;
	int e;

	e = tl_stream_take(r->sub, &o, &item);
	if (e == -EPIPE) {
		all_was_seen(r);
		return;
	}
	must_be(e, 0);
	note_wait(&p->board->slowest_take_ns, began);
	let_go(r, seen, false);
	seen_fill(p->board, p->stream, item, seen);
	if (kinds[p->stream].options.mode == TL_STREAM_BROADCAST) {
		note_progress(r, seen);
		atomic_fetch_add(&p->board->taken[p->stream], 1);
		return;
	}
	note_taken(r, seen);
	if (below(&p->x, 2))
		acknowledge(p->board, seen, tl_item_done, false);
	if (below(&p->x, 2))
		let_go(r, seen, false);
}

static void consume_some(struct part *p, tl_stream *s, uint64_t count)
{
	bool queue = kinds[p->stream].options.mode == TL_STREAM_QUEUE;
	struct reader r = { .part = p, .lossy = !queue && p->index == PRODUCERS };
	uint32_t flags = r.lossy ? TL_SUBSCRIBE_LOSSY : 0;

	if (!queue && below(&p->x, 2))
		flags |= TL_SUBSCRIBE_KEPT;
	r.sub = subscribe(s, flags);
	r.begun = atomic_load(&p->board->begun);
	while (!r.over && (count-- || atomic_load(&p->board->stop)))
		take_one(&r);
	if (r.over || below(&p->x, 2))
		for (unsigned i = 0; i < HELD; i++)
			let_go(&r, &r.held[i], false);
	must_be(tl_subscription_close(r.sub), 0);
	for (unsigned i = 0; i < HELD; i++)
		let_go(&r, &r.held[i], true);
	if (r.over)
		p->stream = STREAMS;
}

static int consume(const struct test_daemon *d, void *arg)
{
	struct part *p = arg;

	while (p->stream < STREAMS) {
		tl_client *client = join(d);
		tl_stream *s = open_kind(client, p->stream);

		for (uint64_t n = 1 + below(&p->x, 4); n && p->stream < STREAMS; n--)
			consume_some(p, s, 1 + below(&p->x, 2000));
		must_be(tl_stream_close(s), 0);
		tl_close(client);
	}
	return 0;
}

/* ---- killing --------------------------------------------------------------------------------- */

static bool status_try(const struct test_daemon *d, struct tl_status *s)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	tl_client *c;
	int r;

	*s = (struct tl_status){ .size = sizeof(*s) };
	if (tl_connect(&o, &c))
		return false;
	r = tl_get_status(c, s);
	tl_close(c);
	return !r;
}

/* The daemon proper. Its clients go on meanwhile, and may be killed before another one serves. */
static void kill_proper(const struct test_daemon *d)
{
	struct tl_status s;

	eventually(status_try(d, &s));
	must_be(kill((pid_t)s.daemon_pid, SIGKILL), 0);
}

struct storm {
	struct board *board;
	struct test_daemon d;
	struct part parts[CHILDREN];
	struct test_child children[CHILDREN];
	uint64_t x;
	unsigned workers_killed, daemons_killed;
};

static void member_start(struct storm *st, unsigned i)
{
	bool produces = i % MEMBERS < PRODUCERS;

	st->parts[i] = (struct part){ .board = st->board,
				      .stream = i / MEMBERS,
				      .index = i % MEMBERS,
				      .x = samples_random(&st->x) };
	st->children[i] = child_start(&st->d, produces ? produce : consume, &st->parts[i]);
}

static void pause_for(struct storm *st, uint64_t longest_us)
{
	nanosleep(&(struct timespec){ .tv_nsec = (long)below(&st->x, longest_us) * 1000 }, NULL);
}

/* It stands still, wherever it is. */
static void stop_one(struct storm *st)
{
	pid_t pid = st->children[below(&st->x, CHILDREN)].pid;

	process_stop(pid);
	pause_for(st, LONGEST_US);
	must_be(kill(pid, SIGCONT), 0);
}

static void kill_one(struct storm *st)
{
	unsigned i = (unsigned)below(&st->x, CHILDREN + 1);

	if (i == CHILDREN) {
		kill_proper(&st->d);
		st->daemons_killed++;
		return;
	}
	child_kill(&st->children[i]);
	if (kinds[i / MEMBERS].options.mode == TL_STREAM_QUEUE && i % MEMBERS >= PRODUCERS)
		st->workers_killed++;
	member_start(st, i);
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool produces(unsigned child)
{
	return child % MEMBERS < PRODUCERS;
}

/* Takes what workers have left that closed their subscriptions when others had seen the end. */
static void queue_drain(struct storm *st, tl_stream *s, unsigned stream)
{
	struct part p = { .board = st->board, .stream = stream, .index = MEMBERS, .x = 1 };

	consume_some(&p, s, UINT64_MAX);
}

static void members_end(struct storm *st)
{
	const tl_stream_put_options o = { .size = sizeof(o), .timeout_ns = patience() };
	tl_client *client;

	atomic_store(&st->board->stop, true);
	for (unsigned i = 0; i < CHILDREN; i++)
		if (produces(i))
			child_must_succeed(&st->children[i]);
	client = join(&st->d);
	td_sync(&st->d); /* what the dead took was opened again */
	for (unsigned i = 0; i < STREAMS; i++) {
		tl_stream *s = open_kind(client, i);

		must_be(tl_stream_end(s, &o), 0);
		must_be(tl_stream_close(s), 0);
	}
	for (unsigned i = 0; i < CHILDREN; i++)
		if (!produces(i))
			child_must_succeed(&st->children[i]);
	for (unsigned i = 0; i < STREAMS; i++) {
		tl_stream *s = open_kind(client, i);

		if (kinds[i].options.mode == TL_STREAM_QUEUE)
			queue_drain(st, s, i);
		must_be(tl_stream_close(s), 0);
		must_be(tl_delete(client, kinds[i].name), 0);
	}
	tl_close(client);
}

/* Each item of a queue was acknowledged once. Who was killed just then may have had no time to tell
 * so. */
static unsigned count_untold(struct board *b)
{
	unsigned untold = 0;

	for (uint32_t i = 1; i < atomic_load(&b->begun); i++) {
		const struct incarnation *in = &b->incarnations[i];

		if (kinds[in->stream].options.mode != TL_STREAM_QUEUE)
			continue;
		for (uint64_t n = 0; n <= in->put && n < SEQUENCES; n++) {
			const struct fact *fact = &b->facts[i][n];

			if (fact->done != 1 && (n < in->put || fact->taken)) {
				if (fact->done || !fact->about)
					print_error("%s: item %u/%llu, number %llu: taken %u, "
						    "about %u, done %u\n",
						    kinds[in->stream].name, i,
						    (unsigned long long)n,
						    (unsigned long long)fact->number, fact->taken,
						    fact->about, fact->done);
				must(!fact->done && fact->about);
				untold++;
			}
		}
	}
	return untold;
}

static void report(const struct storm *st, unsigned times, unsigned untold)
{
	const struct board *b = st->board;

	print_message("%u times, %u daemons killed; %u incarnations; %u acknowledged untold\n",
		      times, st->daemons_killed, b->begun - 1, untold);
	for (unsigned i = 0; i < STREAMS; i++)
		print_message("%s: %llu taken, %llu again\n", kinds[i].name,
			      (unsigned long long)b->taken[i], (unsigned long long)b->again[i]);
	print_message("the slowest put took %.1f ms, the slowest take %.1f ms\n",
		      (double)b->slowest_put_ns / 1e6, (double)b->slowest_take_ns / 1e6);
}

static struct test_daemon start(void)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	struct test_daemon d;

	setenv("TENSORLEASE_KEEPER_IMMORTAL", "1", 1);
	d = td_start(.extra = with_keeper, .expect_ready = true, .capacity = 256 * MIB);
	unsetenv("TENSORLEASE_KEEPER_IMMORTAL");
	return d;
}

/* Does @disturb to them at random moments, and then looks at what all of them have seen. */
static void storm(void (*disturb)(struct storm *st), unsigned times)
{
	struct storm st = { .board = board_new(), .d = start() };
	struct tl_status status;
	unsigned untold;

	test_timeout(TEST_TIMEOUT_S + times / 10);
	st.x = test_seed((uint64_t)getpid());
	for (unsigned i = 0; i < CHILDREN; i++)
		member_start(&st, i);
	for (unsigned i = 0; i < times; i++) {
		/* not to wait for something, but to find another moment each time */
		pause_for(&st, LONGEST_US);
		disturb(&st);
	}
	members_end(&st);
	untold = count_untold(st.board);
	must(untold <= st.workers_killed);
	report(&st, times, untold);
	td_sync(&st.d);
	status = td_status(&st.d);
	must_be(status.tensors, 0);
	must_be(status.retired, 0);
	must_be(status.clients, 0);
	must_be(td_check(&st.d, false), 0);
	munmap(st.board, sizeof(*st.board));
	td_stop(&st.d);
}

TEST(nothing_is_lost_or_waited_for_when_members_and_daemons_are_killed)
{
	storm(kill_one, test_number("TL_KILLS", KILLS));
}

TEST(nothing_is_lost_when_members_stand_still_for_a_while)
{
	storm(stop_one, test_number("TL_KILLS", STOPS));
}

int main(void)
{
	return suite_run();
}
