/* SPDX-License-Identifier: Apache-2.0 */
/* Gets that wait: for a name, for a newer version, asleep or spinning; and what ends the wait. */
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/client/common.h"

TEST(no_time_means_now)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_get_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *t;

	must_be(tl_get(client, "w", &o, &t), -ENOENT);
	put_bytes(client, "w", 1, 10);
	o.newer_than = 1;
	must_be(tl_get(client, "w", &o, &t), -EAGAIN);
	put_bytes(client, "w", 2, 10);
	must_be(tl_get(client, "w", &o, &t), 0);
	must(all_bytes(t, 2, 10));
	drop(t);
	tl_close(client);
}

TEST(time_runs_out)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 50 * MS };
	DLManagedTensorVersioned *t;
	int64_t start = now_ns();

	must_be(tl_get(client, "w", &o, &t), -ETIMEDOUT);
	must(now_ns() - start >= 50 * MS);
	put_bytes(client, "w", 1, 10);
	o.newer_than = 1;
	o.spin_ns = 10 * MS;
	start = now_ns();
	must_be(tl_get(client, "w", &o, &t), -ETIMEDOUT);
	must(now_ns() - start >= 50 * MS);
	tl_close(client);
}

struct waiter {
	tl_client *client;
	int64_t spin_ns;
	_Atomic int got; /* the first byte; < 0: errno */
	_Atomic pid_t tid;
};

static void *wait_for_second(void *arg)
{
	struct waiter *w = arg;
	tl_get_options o = {
		.size = sizeof(o), .timeout_ns = -1, .newer_than = 1, .spin_ns = w->spin_ns
	};
	DLManagedTensorVersioned *t;
	int r;

	atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
	r = tl_get(w->client, "w", &o, &t);
	if (!r) {
		r = *(unsigned char *)t->dl_tensor.data;
		drop(t);
	}
	atomic_store(&w->got, r);
	return NULL;
}

TEST(sleepers_and_spinners_see_a_commit)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	struct waiter w[4] = {
		{ .spin_ns = 0 }, { .spin_ns = SECOND }, { .spin_ns = 0 }, { .spin_ns = MS }
	};
	pthread_t threads[4];

	put_bytes(producer, "w", 1, 100);
	for (int i = 0; i < 4; i++) {
		w[i].client = client;
		must_be(pthread_create(&threads[i], NULL, wait_for_second, &w[i]), 0);
	}
	for (int i = 0; i < 4; i++)
		if (!w[i].spin_ns)
			until_it_sleeps(&w[i].tid);
	for (int i = 0; i < 4; i++)
		must_be(atomic_load(&w[i].got), 0);
	put_bytes(producer, "w", 77, 100);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		must_be(w[i].got, 77);
	}
	tl_close(client);
	tl_close(producer);
}

static void wait_briefly(tl_client *client)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = MS };
	DLManagedTensorVersioned *t;

	must_be(tl_get(client, "none", &o, &t), -ETIMEDOUT);
}

static unsigned count_threads(void)
{
	struct stat st;

	must_be(stat("/proc/self/task", &st), 0);
	return (unsigned)st.st_nlink - 2;
}

TEST(the_thread_that_waits_need_ends_when_nobody_waits_and_comes_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned own = count_threads();

	for (int i = 0; i < 2; i++) {
		wait_briefly(client);
		must_be(count_threads(), own + 1);
		eventually(count_threads() == own);
	}
	tl_close(client);
}

/* Instead of a search for leaks: what the main thread's stack pointed to seems lost. */
static void end_now(void)
{
	_exit(0);
}

static int ends_with_its_last_thread(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_be(atexit(end_now), 0);
	put_bytes(client, "a", 1, 100);
	t = get(client, "a");
	must_be(t->dl_tensor.ndim, 1);
	wait_briefly(client);
	pthread_exit(NULL);
}

TEST(a_process_that_has_waited_ends_when_its_own_threads_have)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c = child_start(&d, ends_with_its_last_thread, NULL);

	must_be(child_wait(&c), 0);
	eventually(td_status(&d).clients == 0);
}

enum { ROUNDS = 3000 };

static int ponger(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	DLManagedTensorVersioned *t;
	tl_info info = { .size = sizeof(info) };

	(void)arg;
	for (int i = 1; i <= ROUNDS; i++) {
		must_be(tl_get(client, "ping", &o, &t), 0);
		must_be(tl_tensor_info(t, &info), 0);
		must(all_bytes(t, i % 251, 64));
		o.newer_than = info.version;
		drop(t);
		put_bytes(client, "pong", i % 251, 64);
	}
	tl_close(client);
	return 0;
}

TEST(ping_pong_loses_no_wake_up)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	struct test_child c = child_start(&d, ponger, NULL);
	DLManagedTensorVersioned *t;

	for (int i = 1; i <= ROUNDS; i++) {
		put_bytes(client, "ping", i % 251, 64);
		o.newer_than = (uint64_t)i - 1;
		o.spin_ns = i % 2 ? 0 : 20000;
		must_be(tl_get(client, "pong", &o, &t), 0);
		must(all_bytes(t, i % 251, 64));
		drop(t);
	}
	child_must_succeed(&c);
	tl_close(client);
}

/* The loop wakes those whom a commit left asleep, though no message comes. */
TEST(when_the_daemon_is_idle_a_whole_crowd_is_awake)
{
	enum { CROWD = 300 };
	static struct sleeping crowd[CROWD];
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct raw rc = rc_open(&d);
	const _Atomic uint32_t *word;

	put_bytes(client, "w", 1, 10);
	word = rc_version_word(&rc, 0); /* the first tensor has the first slot */
	sleeping_start(crowd, CROWD, word);
	put_bytes(client, "w", 2, 10);
	td_sync(&d);
	must_be(syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0), 0);
	sleeping_end(crowd, CROWD);
	rc_close(&rc);
	tl_close(client);
}

/* ---- who moves sleepers away ---- */

enum { LAST_VERSION = 150 };

/* Shared with the thief. A thief that never wakes costs a waiter the second after which it looks by
 * itself; without defence the test would run into its limit of time. */
struct theft {
	_Atomic uint64_t stolen; /* sleepers that were moved */
	_Atomic bool over;
	int64_t wake_ns; /* after so long it wakes those whom it has; 0: never */
	_Atomic uint64_t seen;
	tl_client *client, *producer;
	bool many;
};

static int thief(const struct test_daemon *d, void *arg)
{
	struct theft *theft = arg;
	struct raw rc = rc_open(d);
	const unsigned char *base = (const unsigned char *)rc.catalog;
	const struct catalog_name *name = (const void *)(base + rc.catalog->off_names);
	const struct catalog_wake *wakes = (const void *)(base + rc.catalog->off_wakes);
	const _Atomic uint32_t *word = catalog_version_word(name), *pocket = &wakes[7].word;
	int64_t woken = now_ns();

	must_be(name->len, 1);
	must_be(name->text[0], 'w');
	while (!atomic_load(&theft->over)) {
		long n = syscall(SYS_futex, word, FUTEX_REQUEUE, 0, (void *)(intptr_t)INT_MAX,
				 pocket, 0);

		must(n >= 0);
		atomic_fetch_add(&theft->stolen, (uint64_t)n);
		if (theft->wake_ns && now_ns() - woken > theft->wake_ns) {
			must(syscall(SYS_futex, pocket, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) >= 0);
			woken = now_ns();
		}
		sched_yield();
	}
	return 0;
}

/* Waits for each version, and fails if one is missed. */
static void *see_all(void *arg)
{
	struct theft *theft = arg;

	for (uint64_t v = 2; v <= LAST_VERSION; v++) {
		tl_get_options o = { .size = sizeof(o),
				     .timeout_ns = WAIT_S * SECOND,
				     .newer_than = v - 1 };
		tl_wait_item items[] = { { .name = "w", .newer_than = v - 1 }, { .name = "x" } };
		tl_info info = { .size = sizeof(info) };
		DLManagedTensorVersioned *t;
		size_t which = 7;

		if (theft->many) {
			must_be(tl_wait_many(
					theft->client, items, 2,
					&TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND),
					&which),
				0);
			must_be(which, 0);
		}
		must_be(tl_get(theft->client, "w", &o, &t), 0);
		must_be(tl_tensor_info(t, &info), 0);
		must_be(info.version, v);
		drop(t);
		atomic_store(&theft->seen, v);
	}
	return NULL;
}

/* Publishes each version when its waiter has been stolen. */
static void *publish_all(void *arg)
{
	struct theft *theft = arg;

	for (uint64_t v = 2; v <= LAST_VERSION; v++) {
		uint64_t stolen;

		eventually(atomic_load(&theft->seen) == v - 1);
		stolen = atomic_load(&theft->stolen);
		eventually(atomic_load(&theft->stolen) > stolen);
		must_be(put_alone(theft->producer, "w", 1, 10), v); /* the thief knows no page */
	}
	return NULL;
}

static void wait_beside_a_thief(bool many, int64_t wake_ns)
{
	cleanup_td struct test_daemon d = td_start();
	struct theft *theft = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				   -1, 0);
	pthread_t waiter, publisher;
	struct test_child c;

	must(theft != MAP_FAILED);
	theft->client = td_connect(&d);
	theft->producer = td_connect(&d);
	theft->many = many;
	theft->wake_ns = wake_ns;
	must_be(put_bytes(theft->producer, "w", 1, 10), 1);
	atomic_store(&theft->seen, 1);
	c = child_start(&d, thief, theft);
	must_be(pthread_create(&waiter, NULL, see_all, theft), 0);
	must_be(pthread_create(&publisher, NULL, publish_all, theft), 0);
	eventually(atomic_load(&theft->seen) == LAST_VERSION);
	pthread_join(waiter, NULL);
	pthread_join(publisher, NULL);
	atomic_store(&theft->over, true);
	child_must_succeed(&c);
	tl_close(theft->client);
	tl_close(theft->producer);
	munmap(theft, 4096);
}

TEST(a_get_whose_sleeper_is_stolen_is_in_time_for_each_version)
{
	wait_beside_a_thief(false, 0);
}

TEST(a_wait_for_many_whose_sleeper_is_stolen_is_in_time_for_each_version)
{
	wait_beside_a_thief(true, 0);
}

TEST(a_thief_who_wakes_late_gains_nothing)
{
	wait_beside_a_thief(false, 600 * MS);
	wait_beside_a_thief(true, 600 * MS);
}

int main(void)
{
	return suite_run();
}
