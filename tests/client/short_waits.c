/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that are shorter than it takes to connect again, or to start a daemon. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <tensorlease/names.h>
#include <tensorlease/watch.h>

#include "tests/client/common.h"

enum { SHORT_NS = 20000 };

static int get_shortly(tl_client *client, int64_t ns)
{
	const tl_get_options o = { .size = sizeof(o), .timeout_ns = ns };
	DLManagedTensorVersioned *t;
	int r = tl_get(client, "a", &o, &t);

	if (!r)
		drop(t);
	return r;
}

struct shortly {
	tl_client *client;
	_Atomic pid_t tid;
	pthread_t thread;
	int r;
};

static void *gets(void *arg)
{
	struct shortly *s = arg;

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	s->r = get_shortly(s->client, SHORT_NS);
	return NULL;
}

static void *waits(void *arg)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = SHORT_NS };
	const tl_wait_item item = { .name = "a" };
	struct shortly *s = arg;
	size_t which;

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	s->r = tl_wait_many(s->client, &item, 1, &o, &which);
	return NULL;
}

static void *claims(void *arg)
{
	const tl_claim_options o = { .size = sizeof(o), .timeout_ns = SHORT_NS };
	struct shortly *s = arg;

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	s->r = tl_claim(s->client, "b", &o);
	return NULL;
}

/* A daemon that stands still takes longer to answer than any of these calls waits. */
TEST(short_waits_connect_to_the_next_daemon)
{
	static void *(*const run[])(void *) = { gets, waits, claims };
	enum { N = sizeof(run) / sizeof(*run) };
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	struct shortly s[N] = { 0 };
	tl_client *other;

	for (int i = 0; i < N; i++)
		s[i].client = td_connect(&first);
	td_kill(&first);
	must_be(get_shortly(s[0].client, SHORT_NS), -ENOTCONN);
	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	other = td_connect(&second);
	put_bytes(other, "a", 1, 100);
	td_freeze(&second);
	for (int i = 0; i < N; i++) {
		must_be(pthread_create(&s[i].thread, NULL, run[i], &s[i]), 0);
		until_it_sleeps(&s[i].tid);
	}
	td_thaw(&second);
	for (int i = 0; i < N; i++) {
		must_be(pthread_join(s[i].thread, NULL), 0);
		must_be(s[i].r, 0);
		tl_close(s[i].client);
	}
	tl_close(other);
}

int main(void)
{
	return suite_run();
}
