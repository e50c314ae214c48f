/* SPDX-License-Identifier: Apache-2.0 */
/* Consumers whose daemon ends for good: nobody waits on the dead, or believes what they left. */
#include <tensorlease/watch.h>

#include "tests/client/common.h"

enum { SHORT_MS = 300 };

struct consumer {
	tl_client *client;
	const struct kind *kind;
	int64_t timeout_ns;
	int r;
	char why[512];
	_Atomic pid_t tid;
	pthread_t thread;
};

/* Every way to wait: for "a", for a version of it above 5, or for all of "a" and "b". */
struct kind {
	const char *name;
	int (*wait)(tl_client *client, int64_t timeout_ns);
};

static int get_some(tl_client *client, int64_t timeout_ns, uint64_t newer_than, int64_t spin_ns)
{
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = timeout_ns,
			     .newer_than = newer_than,
			     .spin_ns = spin_ns };
	DLManagedTensorVersioned *t;
	int r = tl_get(client, "a", &o, &t);

	if (!r)
		drop(t);
	return r;
}

static int wait_get(tl_client *client, int64_t timeout_ns)
{
	return get_some(client, timeout_ns, 0, 0);
}

static int wait_newer(tl_client *client, int64_t timeout_ns)
{
	return get_some(client, timeout_ns, 5, 0);
}

static int wait_spinning(tl_client *client, int64_t timeout_ns)
{
	return get_some(client, timeout_ns, 5, WAIT_S * SECOND);
}

static int wait_get_many(tl_client *client, int64_t timeout_ns)
{
	const char *const names[] = { "a", "b" };
	tl_get_options o = { .size = sizeof(o), .timeout_ns = timeout_ns };
	DLManagedTensorVersioned *t[2];
	int r = tl_get_many(client, names, 2, &o, t);

	if (r)
		return r;
	drop(t[0]);
	drop(t[1]);
	return 0;
}

static int wait_some(tl_client *client, int64_t timeout_ns, const tl_wait_item *items, size_t count)
{
	size_t which = count;
	int r = tl_wait_many(client, items, count,
			     &TL_INIT(tl_wait_options, .timeout_ns = timeout_ns), &which);

	must(r || which == 0);
	return r;
}

static int wait_many_one(tl_client *client, int64_t timeout_ns)
{
	return wait_some(client, timeout_ns, (tl_wait_item[]){ { .name = "a" } }, 1);
}

static int wait_many_newer(tl_client *client, int64_t timeout_ns)
{
	return wait_some(client, timeout_ns,
			 (tl_wait_item[]){ { .name = "a", .newer_than = 5 }, { .name = "c" } }, 2);
}

static int wait_prefix(tl_client *client, int64_t timeout_ns)
{
	return wait_some(client, timeout_ns,
			 (tl_wait_item[]){ { .name = "p", .flags = TL_WAIT_PREFIX } }, 1);
}

static int wait_claim(tl_client *client, int64_t timeout_ns)
{
	return tl_claim(
		client, "a",
		&(tl_claim_options){ .size = sizeof(tl_claim_options), .timeout_ns = timeout_ns });
}

static const struct kind kinds[] = {
	{ "get", wait_get },
	{ "get newer", wait_newer },
	{ "get spinning", wait_spinning },
	{ "get many", wait_get_many },
	{ "wait many", wait_many_one },
	{ "wait many newer", wait_many_newer },
	{ "wait for prefix", wait_prefix },
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

static void *consume(void *arg)
{
	struct consumer *c = arg;

	atomic_store(&c->tid, (pid_t)syscall(SYS_gettid));
	c->r = c->kind->wait(c->client, c->timeout_ns);
	snprintf(c->why, sizeof(c->why), "%s", tl_last_error());
	return NULL;
}

static void begin_all(const struct test_daemon *d, struct consumer all[KINDS], int64_t timeout_ns)
{
	for (unsigned i = 0; i < KINDS; i++) {
		all[i] = (struct consumer){ .client = td_connect(d),
					    .kind = &kinds[i],
					    .timeout_ns = timeout_ns };
		must_be(pthread_create(&all[i].thread, NULL, consume, &all[i]), 0);
		if (kinds[i].wait != wait_spinning)
			until_it_sleeps(&all[i].tid);
	}
}

static void give_up_all(struct consumer all[KINDS])
{
	for (unsigned i = 0; i < KINDS; i++) {
		pthread_join(all[i].thread, NULL);
		tl_close(all[i].client);
	}
}

static void end_all(struct consumer all[KINDS], int expected, const char *word)
{
	for (unsigned i = 0; i < KINDS; i++) {
		pthread_join(all[i].thread, NULL);
		if (all[i].r != expected || !strstr(all[i].why, word))
			print_error("%s: %s\n", all[i].kind->name, all[i].why);
		must_be(all[i].r, expected);
		must(strstr(all[i].why, word));
		tl_close(all[i].client);
	}
}

/*
 * Kills the daemon while all wait, and starts @next in its place unless that is NULL. On a busy
 * machine this may outlast @timeout_ns, and then the answers mean nothing.
 */
static bool end_daemon_in_time(struct test_daemon *d, struct test_daemon *next,
			       struct consumer all[KINDS], int64_t timeout_ns)
{
	int64_t start = now_ns();

	begin_all(d, all, timeout_ns);
	td_kill(d);
	if (next)
		*next = td_start(.socket = d->socket);
	return now_ns() - start < timeout_ns / 2; /* so that waiters have time to connect */
}

/* All wait in vain, for longer each time until it is long enough, and end with @expected. */
static void must_all_wait_in_vain(bool has_next, int expected, const char *word)
{
	int64_t timeout_ns = WAIT_S * SECOND / 20, start;
	bool in_time = false;

	for (; !in_time; timeout_ns *= 2) {
		struct test_daemon d = td_start();
		cleanup_td struct test_daemon next = { .pid = 0 };
		struct consumer all[KINDS];

		must(timeout_ns < WAIT_S * SECOND);
		start = now_ns();
		in_time = end_daemon_in_time(&d, has_next ? &next : NULL, all, timeout_ns);
		if (in_time)
			end_all(all, expected, word);
		else
			give_up_all(all);
		must(now_ns() - start >= timeout_ns);
		if (!has_next) /* removes what the other left */
			next = td_start(.socket = d.socket);
		must(td_alive(&next));
	}
}

TEST(who_waits_goes_on_with_the_next_daemon)
{
	struct test_daemon d = td_start();
	cleanup_td struct test_daemon next = { .pid = 0 };
	struct consumer all[KINDS];
	tl_client *producer = td_connect(&d);

	put_alone(producer, "x", 1, 10);
	begin_all(&d, all, -1);
	td_kill(&d);
	next = td_start(.socket = d.socket);
	must(td_alive(&next));
	for (int i = 0; i < 6; i++)
		put_alone(producer, "a", i, 10);
	put_alone(producer, "b", 1, 10);
	put_alone(producer, "p/a", 1, 10);
	end_all(all, 0, "");
	tl_close(producer);
}

/* Workers that saw version 6, and wait for the next: it comes, from a daemon that knows nothing. */
TEST(a_newer_version_comes_from_the_next_daemon)
{
	struct test_daemon d = td_start();
	cleanup_td struct test_daemon next = { .pid = 0 };
	struct consumer worker = { .kind = &kinds[1], .timeout_ns = -1 };
	tl_client *producer = td_connect(&d);

	for (int i = 0; i < 5; i++)
		put_alone(producer, "a", i, 10);
	worker.client = td_connect(&d);
	must_be(pthread_create(&worker.thread, NULL, consume, &worker), 0);
	until_it_sleeps(&worker.tid);
	td_kill(&d);
	next = td_start(.socket = d.socket);
	must(td_alive(&next));
	put_alone(producer, "a", 6, 10);
	pthread_join(worker.thread, NULL);
	must_be(worker.r, 0);
	tl_close(worker.client);
	tl_close(producer);
}

TEST(without_a_daemon_a_wait_ends_with_how_long_it_has_been_gone)
{
	must_all_wait_in_vain(false, -ENOTCONN, "s ago");
}

/* It has no connection that could tell it. */
TEST(a_wait_that_begins_without_a_daemon_says_so_too)
{
	struct test_daemon d = td_start();
	cleanup_td struct test_daemon cleaner = { .pid = 0 };
	tl_client *client = td_connect(&d);

	td_kill(&d);
	for (unsigned i = 0; i < KINDS; i++) {
		must_be(kinds[i].wait(client, SHORT_MS * MS), -ENOTCONN);
		must(strstr(tl_last_error(), "s ago"));
	}
	must_be(wait_claim(client, SHORT_MS * MS), -ENOTCONN);
	cleaner = td_start(.socket = d.socket);
	must(td_alive(&cleaner));
	tl_close(client);
}

TEST(who_waited_in_vain_hears_which_version_there_is)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	for (int i = 0; i < 3; i++)
		put_alone(client, "a", i, 10);
	must_be(wait_newer(client, 0), -EAGAIN);
	must(strstr(tl_last_error(), "'a' has no version above 5: it has version 3"));
	must_be(wait_newer(client, 20 * MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "within 20 ms: it has version 3"));
	must(!strstr(tl_last_error(), "started"));
	must_be(wait_many_newer(client, 20 * MS), -ETIMEDOUT);
	must_be(wait_some(client, 20 * MS, (tl_wait_item[]){ { .name = "a", .newer_than = 7 } }, 1),
		-ETIMEDOUT);
	must(strstr(tl_last_error(), "above 7 came within 20 ms: it has version 3"));
	must_be(tl_delete(client, "a"), 0);
	must_be(wait_newer(client, 20 * MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no tensor has that name"));
	tl_close(client);
}

/* It explains why what was there is not. */
TEST(who_waited_in_vain_hears_that_the_daemon_is_new)
{
	must_all_wait_in_vain(true, -ETIMEDOUT, "the daemon was started ");
}

static int count_one(const tl_info *info, void *context)
{
	(void)info;
	++*(int *)context;
	return 0;
}

/* All that answer without a lease. */
static void must_all_be(tl_client *client, int r, int missing)
{
	tl_status status = { .size = sizeof(status) };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;
	const char *names[] = { "a", "none" };
	int count = 0;

	must_be(tl_stat(client, "a", &info), missing);
	must_be(tl_list(client, "", count_one, &count), r);
	must_be(count, 0);
	must_be(tl_get_status(client, &status), r);
	must_be(tl_get(client, "none", NULL, &t), missing);
	must_be(tl_get_many(client, names, 2, NULL, &t), missing);
	must_be(wait_get_many(client, 0), missing);
}

/* Each with a client of its own, so that none profits from another's look. */
TEST(what_the_dead_left_is_not_told)
{
	struct test_daemon d = td_start();
	cleanup_td struct test_daemon next = { .pid = 0 };
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_status status = { .size = sizeof(status) };
	DLManagedTensorVersioned *t;

	put_bytes(client, "a", 1, 10);
	drop(get(client, "a"));
	td_kill(&d);
	t = get(client, "a"); /* this has a lease, and it is mapped */
	must(all_bytes(t, 1, 10));
	drop(t);
	must_all_be(client, -ENOTCONN, -ENOTCONN);
	must(strstr(tl_last_error(), "s ago"));
	next = td_start(.socket = d.socket);
	must(td_alive(&next));
	must_all_be(client, 0, -ENOENT);
	must_be(tl_get_status(other, &status), 0);
	must(status.daemon_pid == (uint32_t)next.pid);
	tl_close(client);
	tl_close(other);
}

static unsigned threads(void)
{
	char line[256];
	unsigned n = 0;
	FILE *f = fopen("/proc/self/status", "re");

	must(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "Threads: %u", &n);
	fclose(f);
	return n;
}

static void *do_nothing(void *arg)
{
	return arg;
}

/* A sanitizer may start a thread of its own with the first one of the program. */
static unsigned threads_at_rest(void)
{
	pthread_t first;

	must_be(pthread_create(&first, NULL, do_nothing, NULL), 0);
	must_be(pthread_join(first, NULL), 0);
	eventually(threads() == (THREAD_SANITIZER ? 2 : 1));
	return threads();
}

/* Whether there are @n threads after one more wait. If its time is over before it sleeps, it begins
 * none. */
static bool wait_makes_threads(tl_client *client, unsigned n)
{
	must_be(wait_get(client, 10 * MS), -ETIMEDOUT);
	return threads() == n;
}

/* The thread that watches a connection comes with the first sleep, and goes with the client. */
TEST(a_client_that_has_waited_leaves_no_thread)
{
	cleanup_td struct test_daemon d = td_start();
	unsigned before = threads_at_rest();

	for (int i = 0; i < 3; i++) {
		tl_client *client = td_connect(&d);

		put_bytes(client, "x", 1, 10);
		must_be(threads(), before);
		eventually(wait_makes_threads(client, before + 1));
		must(wait_makes_threads(client, before + 1));
		tl_close(client);
		eventually(threads() == before); /* the kernel counts one that is joined a while */
	}
}

static int wait_in_child(const struct test_daemon *d, void *arg)
{
	tl_client *client = *(tl_client **)arg;
	tl_info info = { .size = sizeof(info) };

	(void)d;
	must_be(threads(), 1);
	must_be(tl_stat(client, "a", &info), -ENOENT); /* connects, which may take longer */
	eventually(wait_makes_threads(client, 2));
	tl_close(client);
	return 0;
}

TEST(a_forked_child_watches_a_connection_of_its_own)
{
	SKIP_UNLESS(!THREAD_SANITIZER, "the thread sanitizer allows no new thread after a fork");
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c;

	must_be(wait_get(client, 10 * MS), -ETIMEDOUT);
	c = child_start(&d, wait_in_child, &client);
	child_must_succeed(&c);
	must_be(wait_get(client, 10 * MS), -ETIMEDOUT);
	tl_close(client);
}

struct inherited {
	tl_client *client;
	DLManagedTensorVersioned *held;
};

static int closes_without_descriptors(const struct test_daemon *d, void *arg)
{
	const struct inherited *i = arg;

	(void)d;
	must_be(wait_get(i->client, 10 * MS), -ETIMEDOUT);
	child_close_all();
	forbid_descriptors();
	drop(i->held);
	must_be(tl_close(i->client), 0);
	return 0;
}

/* Its thread cannot be woken by the socket any more. */
TEST(a_child_that_waited_and_closed_its_descriptors_closes_its_client)
{
	SKIP_UNLESS(!THREAD_SANITIZER, "the thread sanitizer allows no new thread after a fork");
	cleanup_td struct test_daemon d = td_start();
	struct inherited i = { .client = td_connect(&d) };

	put_bytes(i.client, "held", 1, 100);
	i.held = get(i.client, "held");
	must_be(td_run_client(&d, closes_without_descriptors, &i), 0);
	drop(i.held);
	tl_close(i.client);
}

/* ---- A daemon that does not answer ---- */

static int watch_a(tl_client *client, int64_t timeout_ns)
{
	tl_watch_options o = { .size = sizeof(o), .flags = TL_WATCH_NEW };
	tl_watch_event event = { .size = sizeof(event) };
	static tl_watch *watch;
	int r = timeout_ns ? 0 : tl_watch_open(client, "a", &o, &watch);

	if (timeout_ns)
		r = tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = timeout_ns),
				  &event);
	return r;
}

static int wait_many_100(tl_client *client, int64_t timeout_ns)
{
	return wait_some(client, timeout_ns, (tl_wait_item[]){ { .name = "a", .newer_than = 100 } },
			 1);
}

static int get_100(tl_client *client, int64_t timeout_ns)
{
	return get_some(client, timeout_ns, 100, 0);
}

/* Versions 1 to 100, of a ring in the end. A slot that comes back too late would end it. */
static void put_100(tl_client *producer, const struct test_daemon *d)
{
	for (unsigned i = 1; i <= 100; i++) {
		put_bytes(producer, "a", 1, 10);
		if (i % 16 == 0)
			td_sync(d);
	}
	td_sync(d);
}

/* The daemon is asked to have it woken, and does not answer in the client's time. */
TEST(a_wait_for_a_ring_lasts_though_the_daemon_does_not_answer)
{
	static const struct kind of_ring[] = { { "get", get_100 },
					       { "wait many", wait_many_100 },
					       { "watch", watch_a } };
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *client;
	int64_t start;

	put_100(producer, &d);
	for (int i = 0; i < 3; i++) {
		client = td_connect(&d);
		must_be(get_some(client, 0, 0, 0), 0); /* it has the page */
		must_be(watch_a(client, 0), 0);
		client_set_timeout(client, 50 * MS);
		td_freeze(&d);
		start = now_ns();
		must_be(of_ring[i].wait(client, SHORT_MS * MS), -ETIMEDOUT);
		must(strstr(tl_last_error(), "within 300 ms"));
		must(now_ns() - start >= SHORT_MS * MS);
		td_thaw(&d);
		client_set_timeout(client, WAIT_S * SECOND);
		tl_close(client);
	}
	tl_close(producer);
}

TEST(a_version_of_a_ring_comes_though_the_daemon_does_not_answer)
{
	static const struct kind kind = { "get", get_100 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d);
	struct consumer c = { .kind = &kind, .timeout_ns = -1, .client = td_connect(&d) };

	put_100(producer, &d);
	must_be(get_some(c.client, 0, 0, 0), 0);
	client_set_timeout(c.client, 50 * MS);
	td_freeze(&d);
	must_be(pthread_create(&c.thread, NULL, consume, &c), 0);
	until_it_sleeps(&c.tid);
	put_bytes(producer, "a", 2, 10); /* that needs no daemon */
	pthread_join(c.thread, NULL);
	must_be(c.r, 0);
	td_thaw(&d);
	tl_close(c.client);
	tl_close(producer);
}

int main(void)
{
	return suite_run();
}
