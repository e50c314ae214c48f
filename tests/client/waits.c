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
	SKIP_UNLESS(!THREAD_SANITIZER, "ThreadSanitizer has a thread of its own in the process");
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
	SKIP_UNLESS(!THREAD_SANITIZER, "ThreadSanitizer has a thread of its own in the process");
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
	word = rc_changes_word(&rc, 0); /* the first tensor has the first slot */
	sleeping_start(crowd, CROWD, word);
	put_bytes(client, "w", 2, 10);
	td_sync(&d);
	must_be(syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0), 0);
	sleeping_end(crowd, CROWD);
	rc_close(&rc);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
