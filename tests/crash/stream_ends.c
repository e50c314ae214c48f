/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of streams and of their daemons, and memory that comes back late. */
#include <sys/mman.h>
#include <time.h>

#include "tests/crash/streams.h"
#include "tests/harness/messages.h"
#include "tests/harness/number.h"
#include "tests/harness/process.h"
#include "tests/harness/seed.h"

static tl_stream *make_stream(tl_client *client, const char *name, uint32_t mode, uint32_t depth)
{
	const tl_stream_options o = { .size = sizeof(o), .mode = mode, .depth = depth };
	tl_stream *s = NULL;

	must_be(tl_stream_open(client, name, &o, &s), 0);
	return s;
}

static int put_number(tl_stream *s, uint64_t number, int64_t n, int64_t timeout_ns)
{
	uint64_t *words = calloc((size_t)n, sizeof(*words));
	int r;

	must(words);
	words_fill(words, (uint64_t)n, 0, 0, number);
	r = put_words(s, words, n, timeout_ns, NULL);
	free(words);
	return r;
}

static int take_item(tl_subscription *sub, int64_t timeout_ns, tl_item **item)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = timeout_ns };

	return tl_stream_take(sub, &o, item);
}

/* ---- daemons --------------------------------------------------------------------------------- */

static void taking_ends_with_the_daemon(uint32_t mode)
{
	struct test_daemon d = td_start(), next;
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = make_stream(p, "s", mode, 8), *in = make_stream(c, "s", mode, 8);
	tl_subscription *sub = subscribe(in, 0);
	tl_item *item = NULL;
	int r, taken = 0;

	for (uint64_t i = 0; i < 8; i++) /* of which each is in a segment of its own */
		must_be(put_number(out, i, 200 << 10, 0), 0);
	must_be(take_item(sub, 0, &item), 0);
	must_be(tl_item_release(item), 0);
	td_kill(&d);
	while (!(r = take_item(sub, patience(), &item))) {
		must(++taken < 8);
		must_be(tl_item_release(item), 0);
	}
	must(r == -ESTALE || r == -ENOTCONN);
	eventually((r = put_number(out, 8, 10, patience()))); /* it looks now and then */
	must(r == -ESTALE || r == -ENOTCONN);
	must_be(tl_subscription_close(sub), 0);
	must_be(tl_stream_close(out), 0);
	must_be(tl_stream_close(in), 0);
	tl_close(p);
	tl_close(c);
	next = td_start(.socket = d.socket);
	td_stop(&next);
}

TEST(taking_from_a_broadcast_ends_with_its_daemon)
{
	taking_ends_with_the_daemon(TL_STREAM_BROADCAST);
}

TEST(taking_from_a_queue_ends_with_its_daemon)
{
	taking_ends_with_the_daemon(TL_STREAM_QUEUE);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { BIG = 256 << 10 }; /* words */

struct giving {
	tl_stream *out;
	tl_item *items[16];
	unsigned n;
	_Atomic pid_t tid;
};

static int give_back(const struct test_daemon *d, void *arg)
{
	struct giving *g = arg;

	(void)d;
	pause_at(1);
	for (unsigned i = 0; i < g->n; i++)
		must_be(tl_item_release(g->items[i]), 0);
	pause_at(2);
	return 0;
}

static void *put_when_there_is_memory(void *arg)
{
	struct giving *g = arg;

	atomic_store(&g->tid, (pid_t)syscall(SYS_gettid));
	must_be(put_number(g->out, 0, BIG, patience()), 0);
	return NULL;
}

/* The daemon brings back what a child holds, later than the child says so. */
TEST(who_waits_for_memory_is_told_when_it_comes_back)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *in = make_stream(c, "s", TL_STREAM_BROADCAST, 64);
	tl_subscription *sub = subscribe(in, 0);
	struct giving g = { .out = make_stream(p, "s", TL_STREAM_BROADCAST, 64) };
	struct tl_status status;
	struct test_child child;
	pthread_t thread;
	int64_t began;

	while (!put_number(g.out, g.n, BIG, 0)) {
		must(g.n < 16);
		must_be(take_item(sub, 0, &g.items[g.n++]), 0);
	}
	child = child_start_ready(&d, give_back, &g);
	for (unsigned i = 0; i < g.n; i++)
		must_be(tl_item_release(g.items[i]), 0);
	must_be(put_number(g.out, 0, BIG, 20 * MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no memory for a further item"));
	td_freeze(&d);
	must_be(child_step(&child), 2);
	must_be(pthread_create(&thread, NULL, put_when_there_is_memory, &g), 0);
	until_it_sleeps(&g.tid);
	began = now_ns();
	td_thaw(&d);
	must_be(pthread_join(thread, NULL), 0);
	print_message("memory came back after %.1f ms\n", (double)(now_ns() - began) / 1e6);
	child_finish(&child);
	must_be(tl_subscription_close(sub), 0);
	must_be(tl_stream_close(g.out), 0);
	must_be(tl_stream_close(in), 0);
	must_be(tl_delete(p, "s"), 0);
	tl_close(p);
	tl_close(c);
	status = td_status(&d);
	must_be(status.retired, 0);
	must_be(status.bytes_used, status.bytes_warm);
}

/* ---- deletes --------------------------------------------------------------------------------- */

enum { DELETES = 100, MEMBERS = 8, LONGEST_US = 20000 };

struct board {
	_Atomic bool stop;
	_Atomic uint64_t puts, takes, streams;
};

struct part {
	struct board *board;
	unsigned index;
	uint64_t x;
};

static uint32_t mode_of(const struct part *p)
{
	return p->index % 2 ? TL_STREAM_QUEUE : TL_STREAM_BROADCAST;
}

static const char *name_of(const struct part *p)
{
	return p->index % 2 ? "q" : "b";
}

static void item_check(const tl_item *item)
{
	const DLTensor *t = tl_item_tensor(item, 0, NULL);
	const uint64_t *words = t->data;

	must_be(words[3], t->shape[0]);
	for (uint64_t i = 4; i < words[3]; i++)
		must_be(words[i], pattern(0, words[2], i));
}

static int put_some(struct part *p, tl_stream *s)
{
	int r = put_number(s, samples_random(&p->x), 8 + (int64_t)(samples_random(&p->x) % 8000),
			   patience());

	atomic_fetch_add(&p->board->puts, !r);
	return r;
}

static int take_some(struct part *p, tl_subscription *sub, tl_item **held)
{
	tl_item *item = NULL;
	int r = take_item(sub, patience(), &item);

	if (r)
		return r;
	item_check(item);
	atomic_fetch_add(&p->board->takes, 1);
	if (*held)
		item_check(*held);
	must_be(tl_item_release(*held), 0);
	*held = item;
	return 0;
}

/* Puts or takes until the stream is gone, and then begins with another one. */
static int go_on(const struct test_daemon *d, void *arg)
{
	struct part *p = arg;
	tl_client *client = td_connect(d);
	bool puts = p->index / 2 % 2;

	while (!atomic_load(&p->board->stop)) {
		tl_stream *s = make_stream(client, name_of(p), mode_of(p), 16);
		tl_subscription *sub = NULL;
		tl_item *held = NULL;
		int r = puts ? 0 : tl_stream_subscribe(s, NULL, &sub);

		while (!r)
			r = puts ? put_some(p, s) : take_some(p, sub, &held);
		must_be(r, -ESTALE);
		atomic_fetch_add(&p->board->streams, 1);
		if (held)
			item_check(held);
		tl_item_release(held);
		must_be(tl_subscription_close(sub), 0);
		must_be(tl_stream_close(s), 0);
	}
	tl_close(client);
	return 0;
}

TEST(streams_are_deleted_under_their_members)
{
	cleanup_td struct test_daemon d = td_start();
	struct board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);
	uint64_t x = test_seed((uint64_t)getpid());
	tl_client *client = td_connect(&d);
	struct test_child children[MEMBERS];
	struct part parts[MEMBERS];
	int r, left = MEMBERS;

	must(b != MAP_FAILED);
	for (unsigned i = 0; i < MEMBERS; i++) {
		parts[i] = (struct part){ .board = b, .index = i, .x = samples_random(&x) };
		children[i] = child_start(&d, go_on, &parts[i]);
	}
	for (unsigned i = 0; i < DELETES || left; i++) {
		nanosleep(&(struct timespec){ .tv_nsec = (long)(samples_random(&x) % LONGEST_US) *
							 1000 },
			  NULL);
		r = tl_delete(client, i % 2 ? "q" : "b");
		must(!r || r == -ENOENT);
		if (i >= DELETES) {
			int status;

			atomic_store(&b->stop, true);
			for (unsigned m = 0; m < MEMBERS; m++)
				if (children[m].pid && waitpid(children[m].pid, &status, WNOHANG)) {
					must_be(status, 0);
					children[m].pid = 0;
					child_hang_up(&children[m]);
					left--;
				}
		}
	}
	print_message("%llu puts, %llu takes, %llu streams opened\n", (unsigned long long)b->puts,
		      (unsigned long long)b->takes, (unsigned long long)b->streams);
	munmap(b, sizeof(*b));
	tl_delete(client, "q");
	tl_delete(client, "b");
	tl_close(client);
	td_must_be_empty(&d);
}

int main(void)
{
	return suite_run();
}
