/* SPDX-License-Identifier: Apache-2.0 */
/* Subscribers of streams that stand still, and producers and subscribers that fork. */
#include <sys/mman.h>

#include "tests/crash/streams.h"
#include "tests/harness/process.h"

/* ---- a subscriber that stands still ---------------------------------------------------------- */

struct follower {
	const char *name;
	uint32_t flags;
	_Atomic uint64_t seen, skipped;
};

static struct follower *follower_new(const char *name, uint32_t flags)
{
	struct follower *f = mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(f != MAP_FAILED);
	f->name = name;
	f->flags = flags;
	return f;
}

static tl_stream *open_existing(tl_client *client, const char *name)
{
	const tl_stream_options o = { .size = sizeof(o), .flags = TL_STREAM_EXISTING };
	tl_stream *s = NULL;

	must_be(tl_stream_open(client, name, &o, &s), 0);
	return s;
}

static tl_item *take(tl_subscription *sub)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = patience() };
	tl_item *item = NULL;
	int r = tl_stream_take(sub, &o, &item);

	if (r != -EPIPE)
		must_be(r, 0);
	return item;
}

/* Takes what one producer puts, up to the end. */
static int follow(const struct test_daemon *d, void *arg)
{
	struct follower *f = arg;
	tl_client *client = td_connect(d);
	tl_stream *s = open_existing(client, f->name);
	tl_subscription *sub = subscribe(s, f->flags);
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item;

	parent_tell(1);
	while ((item = take(sub))) {
		const uint64_t *words = tl_item_tensor(item, 0, NULL)->data;

		must_be(tl_item_get_info(item, &info), 0);
		must(!info.skipped || f->flags & TL_SUBSCRIBE_LOSSY);
		atomic_fetch_add(&f->skipped, info.skipped);
		must_be(words[2], f->seen + f->skipped);
		must_be(words[4], pattern(0, words[2], 4));
		atomic_fetch_add(&f->seen, 1);
		must_be(tl_item_release(item), 0);
	}
	must_be(tl_subscription_close(sub), 0);
	must_be(tl_stream_close(s), 0);
	tl_close(client);
	return 0;
}

static int put_next(tl_stream *s, uint64_t *sequence, int64_t timeout_ns)
{
	uint64_t words[100];
	int r;

	words_fill(words, 100, 0, 0, *sequence);
	r = put_words(s, words, 100, timeout_ns, NULL);
	*sequence += !r;
	return r;
}

static tl_stream *make_stream(tl_client *client, const char *name, uint32_t mode, uint32_t depth)
{
	const tl_stream_options o = { .size = sizeof(o), .mode = mode, .depth = depth };
	tl_stream *s = NULL;

	must_be(tl_stream_open(client, name, &o, &s), 0);
	return s;
}

static void stream_over(tl_stream *s)
{
	const tl_stream_put_options o = { .size = sizeof(o), .timeout_ns = patience() };

	must_be(tl_stream_end(s, &o), 0);
	must_be(tl_stream_close(s), 0);
}

TEST(a_subscriber_that_stands_still_holds_up_its_stream_and_loses_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	enum { DEPTH = 8, ROUNDS = 50 };
	struct follower *f = follower_new("s", 0);
	tl_client *client = td_connect(&d);
	tl_stream *s = make_stream(client, "s", TL_STREAM_BROADCAST, DEPTH);
	struct test_child c = child_start_ready(&d, follow, f);
	uint64_t n = 0;
	char who[32];

	snprintf(who, sizeof(who), "(pid %d)", (int)c.pid);
	for (int i = 0; i < ROUNDS; i++) {
		for (int k = 0; k < i; k++)
			must_be(put_next(s, &n, patience()), 0);
		process_stop(c.pid);
		while (!put_next(s, &n, 0))
			must(n <= f->seen + DEPTH + 1); /* it may have one that it has not told */
		must_be(put_next(s, &n, MS), -ETIMEDOUT);
		must(strstr(tl_last_error(), who));
		must_be(put_next(s, &n, 0), -EAGAIN);
		must_be(kill(c.pid, SIGCONT), 0);
	}
	must_be(put_next(s, &n, patience()), 0);
	stream_over(s);
	child_must_succeed(&c);
	must_be(f->seen, n);
	munmap(f, sizeof(*f));
	tl_close(client);
}

TEST(a_lossy_subscriber_that_stands_still_holds_up_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	struct follower *f = follower_new("s", TL_SUBSCRIBE_LOSSY);
	tl_client *client = td_connect(&d);
	tl_stream *s = make_stream(client, "s", TL_STREAM_BROADCAST, 8);
	struct test_child c = child_start_ready(&d, follow, f);
	uint64_t n = 0;

	for (int i = 0; i < 50; i++) {
		process_stop(c.pid);
		for (int k = 0; k < 100; k++)
			must_be(put_next(s, &n, 0), 0);
		must_be(kill(c.pid, SIGCONT), 0);
		for (int k = 0; k < i; k++)
			must_be(put_next(s, &n, 0), 0);
	}
	stream_over(s);
	child_must_succeed(&c);
	must_be(f->seen + f->skipped, n);
	must(f->seen && f->skipped);
	munmap(f, sizeof(*f));
	tl_close(client);
}

/* ---- a subscriber that forks ----------------------------------------------------------------- */

struct heritage {
	tl_client *client;
	tl_stream *s, *queue;
	tl_subscription *sub;
	tl_item *items[3], *job; /* items have the sequences 0, 1 and 2 */
	DLManagedTensorVersioned *tensor;
};

static void must_be_item(const tl_item *item, uint64_t sequence)
{
	const uint64_t *words = tl_item_tensor(item, 0, NULL)->data;

	must_be(words[2], sequence);
	for (uint64_t i = 4; i < 100; i++)
		must_be(words[i], pattern(0, sequence, i));
}

static void must_be_tensor(const DLManagedTensorVersioned *t, uint64_t sequence)
{
	must_be(((const uint64_t *)t->dl_tensor.data)[99], pattern(0, sequence, 99));
}

/* Handles are the parent's. What was taken can be read. */
static int inherit(const struct test_daemon *d, void *arg)
{
	struct heritage *h = arg;
	const tl_wait_options wait = { .size = sizeof(wait), .timeout_ns = -1 };
	tl_subscription *sub = NULL;
	tl_item *item = NULL;
	uint64_t n = 1003;

	(void)d;
	for (int round = 0; round < 2; round++) {
		for (unsigned i = 0; i < 3; i++)
			must_be_item(h->items[i], i);
		must_be_item(h->job, 0);
		must_be_tensor(h->tensor, 0);
		pause_at(1);
	}
	must_be(put_next(h->s, &n, -1), -ECHILD);
	must_be(tl_stream_end(h->s, NULL), -ECHILD);
	must_be(tl_stream_reopen(h->s), -ECHILD);
	must_be(tl_stream_subscribe(h->s, NULL, &sub), -ECHILD);
	must_be(tl_stream_take(h->sub, &wait, &item), -ECHILD);
	must_be(tl_item_done(h->job), 0); /* it is the parent's to acknowledge */
	for (unsigned i = 0; i < 3; i++)
		must_be(tl_item_release(h->items[i]), 0);
	must_be(tl_item_release(h->job), 0);
	h->tensor->deleter(h->tensor);
	must_be(tl_subscription_close(h->sub), 0);
	must_be(tl_stream_close(h->s), 0);
	must_be(tl_stream_close(h->queue), 0);
	pause_at(1);

	h->s = open_existing(h->client, "s"); /* the client is the child's as well */
	h->sub = subscribe(h->s, 0);
	must_be(put_next(h->s, &n, 0), 0);
	pause_at(1);
	for (uint64_t i = 1003; i < 1005; i++) {
		item = take(h->sub);
		must_be_item(item, i);
		must_be(tl_item_release(item), 0);
	}
	must_be(tl_subscription_close(h->sub), 0);
	must_be(tl_stream_close(h->s), 0);
	tl_close(h->client);
	return 0;
}

TEST(a_forked_child_has_the_items_that_it_inherited_but_no_handles)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *out = make_stream(p, "s", TL_STREAM_BROADCAST, 4),
		  *jobs = make_stream(p, "q", TL_STREAM_QUEUE, 4);
	struct heritage h = { .client = td_connect(&d) };
	uint64_t n = 0, job = 0;
	tl_subscription *worker;
	struct test_child c;

	h.s = open_existing(h.client, "s");
	h.queue = open_existing(h.client, "q");
	h.sub = subscribe(h.s, 0);
	worker = subscribe(h.queue, 0);
	for (int i = 0; i < 3; i++) {
		must_be(put_next(out, &n, 0), 0);
		h.items[i] = take(h.sub);
	}
	must_be(put_next(jobs, &job, 0), 0);
	h.job = take(worker);
	must_be(tl_item_to_dlpack(h.items[0], 0, &h.tensor), 0);
	must_be(put_next(h.s, &n, 0), 0); /* so that the handle is a producer's too */
	must_be(tl_item_release(take(h.sub)), 0);

	c = child_start_ready(&d, inherit, &h);
	for (int i = 0; i < 3; i++)
		must_be(tl_item_release(h.items[i]), 0);
	h.tensor->deleter(h.tensor);
	for (n = 4; n < 1000; n++) {
		uint64_t next = n;

		must_be(put_next(out, &next, 0), 0);
		must_be(tl_item_release(take(h.sub)), 0);
	}
	child_step(&c);
	child_step(&c);
	must_be(tl_item_release(h.job), 0);
	must_be(tl_subscription_close(worker), 0);
	must_be(tl_subscription_close(h.sub), 0);
	must_be(tl_stream_close(h.s), 0);
	must_be(tl_stream_close(h.queue), 0);
	tl_close(h.client);
	child_step(&c);
	n = 1004;
	must_be(put_next(out, &n, 0), 0);
	child_finish(&c);

	worker = subscribe(jobs, 0);
	must_be(put_next(jobs, &job, 0), 0);
	h.job = take(worker);
	must_be_item(h.job, 1); /* the first one was acknowledged */
	must_be(tl_item_release(h.job), 0);
	must_be(tl_subscription_close(worker), 0);
	must_be(tl_stream_close(out), 0);
	must_be(tl_stream_close(jobs), 0);
	must_be(tl_delete(p, "s"), 0);
	must_be(tl_delete(p, "q"), 0);
	tl_close(p);
	td_must_be_empty(&d);
}

struct blocked {
	tl_stream *s;
	_Atomic pid_t tid;
};

static void *put_blocked(void *arg)
{
	struct blocked *b = arg;
	uint64_t n = 4;

	atomic_store(&b->tid, (pid_t)syscall(SYS_gettid));
	must_be(put_next(b->s, &n, WAIT_S * SECOND), 0);
	return NULL;
}

static int put_refused(const struct test_daemon *d, void *arg)
{
	struct blocked *b = arg;
	uint64_t n = 4;

	(void)d;
	must_be(put_next(b->s, &n, -1), -ECHILD);
	must_be(tl_stream_end(b->s, NULL), -ECHILD);
	must_be(tl_stream_reopen(b->s), -ECHILD);
	must_be(tl_stream_close(b->s), 0);
	return 0;
}

TEST(a_fork_while_a_thread_waits_for_room_disturbs_neither)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer cannot fork among threads");
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct blocked b = { .s = make_stream(client, "s", TL_STREAM_BROADCAST, 4) };
	tl_subscription *sub = subscribe(b.s, 0);
	pthread_t thread;
	uint64_t n = 0;

	while (n < 4)
		must_be(put_next(b.s, &n, 0), 0);
	must_be(pthread_create(&thread, NULL, put_blocked, &b), 0);
	until_it_sleeps(&b.tid);
	must_be(td_run_client(&d, put_refused, &b), 0);
	for (uint64_t i = 0; i < 5; i++) {
		tl_item *item = take(sub);

		must_be_item(item, i);
		must_be(tl_item_release(item), 0);
	}
	must_be(pthread_join(thread, NULL), 0);
	must_be(tl_subscription_close(sub), 0);
	must_be(tl_stream_close(b.s), 0);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
