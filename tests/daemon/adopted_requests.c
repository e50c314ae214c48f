/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a daemon's death left unanswered. */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/daemon/adopted_common.h"
#include "tests/harness/child.h"
#include "tests/harness/process.h"
#include "tests/harness/sleeper.h"

static const char *const with_keeper[] = { "--keeper", "yes", "--warm-time", "0", NULL };

static int puts_in_a_ring(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = { .size = sizeof(o), .ring = 4 };
	tl_client *c = td_connect(d);
	int64_t n = SMALL;
	uint8_t bytes[SMALL] = { 7 };
	const DLTensor t = tensor_of(bytes, &n);
	uint64_t version;

	(void)arg;
	for (int i = 0; i < 6; i++)
		must_be(tl_put(c, "r", &t, &o, &version), 0);
	pause_at(version);
	return 0;
}

struct again {
	tl_client *c;
	DLManagedTensorVersioned *t;
	_Atomic pid_t tid;
	uint64_t version;
};

static void *publish_again(void *arg)
{
	struct again *a = arg;

	atomic_store(&a->tid, (pid_t)gettid());
	must_be(tl_publish(a->c, "r", a->t, NULL, NULL, &a->version), 0);
	return NULL;
}

static int publishes_again(const struct test_daemon *d, void *arg)
{
	struct again a = { .c = td_connect(d) };
	pthread_t thread;

	(void)arg;
	must_be(tl_get(a.c, "r", NULL, &a.t), 0);
	pause_at(1);
	must_be(pthread_create(&thread, NULL, publish_again, &a), 0);
	until_it_sleeps(&a.tid);
	parent_tell(2);
	must_be(pthread_join(thread, NULL), 0);
	pause_at(a.version);
	return 0;
}

/* The bytes are there under that name, but were not published again. */
TEST(a_tensor_of_a_ring_is_published_under_its_own_name_after_all)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *c = td_connect(&d);
	pid_t pid = proper(c);
	struct test_child producer = child_start(&d, puts_in_a_ring, NULL), consumer;
	uint64_t version = child_await(&producer);

	must_be(client_status(c).rings, 1);
	consumer = child_start_ready(&d, publishes_again, NULL);
	td_freeze(&d);
	must_be(child_step(&consumer), 2);
	process_stop(consumer.pid);
	child_kill(&producer);
	must_be(kill(pid, SIGKILL), 0);
	eventually(proper(c) != pid);
	eventually(!client_status(c).rings);
	must_be(kill(consumer.pid, SIGCONT), 0);
	must_be(child_await(&consumer), version + 1);
	child_finish(&consumer);
	tl_close(c);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
