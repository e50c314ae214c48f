/* SPDX-License-Identifier: Apache-2.0 */
/* Rings whose daemon dies: they end with it, or go on with the one that takes over. */
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/client/rings.h"
#include "tests/harness/process.h"

TEST(a_daemon_that_is_killed_takes_its_rings_along)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *producer = td_connect(&first), *consumer = td_connect(&first);
	DLManagedTensorVersioned *t;
	int64_t began = now_ns() - SECOND / 50; /* the library reads a coarse clock */
	uint64_t last = begin(producer, "r"), version;
	int r;

	must_be(put_ring(producer, "r", 2), ++last);
	must(has(consumer, "r", 2, last));
	td_kill(&first);
	r = put_now(producer, "r", 3, &version);
	if (now_ns() - began < SECOND)
		must_be(r, 0); /* as long as it has slots */
	else
		must(r == 0 || r == -ENOTCONN); /* who is slow looks each second */
	if (r == 0) {
		must_be(version, ++last);
		t = get(consumer, "r");
		must(all_bytes(t, 3, SIZE));
		drop(t);
	}
	second = td_start(.socket = first.socket);
	must(second.pid != first.pid);
	version = put_ring(producer, "r", 4);
	must(version > last);
	must(has(consumer, "r", 4, version));
	begin(producer, "s");
	tl_close(producer);
	tl_close(consumer);
}

static int try_ring(tl_client *client, const char *name)
{
	const tl_put_options o = { .size = sizeof(o) };
	unsigned char data[SIZE] = { 0 };
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);

	return tl_put(client, name, &t, &o, NULL);
}

/* Who publishes fast sends a message soon; who is slow looks each second. */
TEST(a_producer_notices_that_the_daemon_was_killed)
{
	struct test_daemon d = td_start(.no_keeper = "it is to stay dead");
	cleanup_td struct test_daemon next = { .pid = 0 };
	tl_client *fast = td_connect(&d), *slow = td_connect(&d);
	int64_t start;
	int after = 0;

	begin(fast, "r");
	start = now_ns();
	for (int i = 0; i < 3 || rings(fast) < 2; i++) {
		must(i < 3 || puts_were_slow(start));
		put_ring(slow, "s", i);
	}
	must_be(rings(fast), 2);
	td_kill(&d);
	while (!try_ring(fast, "r"))
		after++;
	must(after <= TL_RING_MAX / 2);
	must_be(try_ring(fast, "r"), -ENOTCONN);
	eventually(try_ring(slow, "s") == -ENOTCONN);
	next = td_start(.socket = d.socket);
	must(next.pid != d.pid);
	must(put_ring(fast, "r", 1) > (uint64_t)after);
	must(put_ring(slow, "s", 1) > 3);
	tl_close(fast);
	tl_close(slow);
}

static _Atomic int64_t ahead_ns; /* how far the library's coarse clock is ahead */

int clock_gettime(clockid_t id, struct timespec *tp)
{
	int r = (int)syscall(SYS_clock_gettime, id, tp);

	if (!r && id == CLOCK_MONOTONIC_COARSE)
		tp->tv_sec += ahead_ns / SECOND;
	return r;
}

/* Kills it when the library's next look for the daemon is due. */
static void kill_unseen(struct test_daemon *d)
{
	td_kill(d);
	ahead_ns += 2 * SECOND;
}

static void clean_up(const struct test_daemon *killed)
{
	cleanup_td struct test_daemon cleaner = td_start(.socket = killed->socket);

	must(td_alive(&cleaner));
}

TEST(a_put_that_finds_the_daemon_gone_publishes_nothing)
{
	struct test_daemon d = td_start(.no_keeper = "it is to stay dead");
	tl_client *client = td_connect(&d);

	begin(client, "r");
	kill_unseen(&d);
	for (int i = 0; i < 3; i++)
		must_be(try_ring(client, "r"), -ENOTCONN);
	tl_close(client);
	clean_up(&d);
}

TEST(a_commit_that_finds_the_daemon_gone_publishes_nothing)
{
	struct test_daemon d = td_start(.no_keeper = "it is to stay dead");
	tl_client *client = td_connect(&d);
	const int64_t n = SIZE;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	begin(client, "r");
	must_be(tl_create(client, "r", &spec, &draft), 0);
	kill_unseen(&d);
	must_be(tl_commit(draft, NULL), -ESTALE);
	tl_close(client);
	clean_up(&d);
}

static const char *const with_keeper[] = { "--keeper", "yes", NULL };

TEST(a_ring_goes_on_when_another_daemon_takes_over)
{
	cleanup_td struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	DLManagedTensorVersioned *held;
	uint64_t version = begin(producer, "r"), many;

	must_be(put_ring(producer, "r", 2), ++version);
	held = get(consumer, "r");
	for (int round = 1; round < 4; round++) {
		daemon_kill(consumer);
		must_be(rings(consumer), 1);
		must(has(consumer, "r", round == 1 ? 2 : 0, version));
		many = commits(consumer);
		for (int i = 199; i >= 0; i--) {
			must_be(put_ring(producer, "r", i), ++version);
			must(has(consumer, "r", i, version));
		}
		version = put_until_ring(producer, "r", 0, version);
		must(commits(consumer) > many);
	}
	must(all_bytes(held, 2, SIZE));
	drop(held);
	tl_close(producer);
	eventually(rings(consumer) == 0);
	must(has(consumer, "r", 0, version));
	daemon_kill(consumer);
	must(has(consumer, "r", 0, version));
	must_be(put_bytes(consumer, "r", 1, SIZE), version + 1);
	td_sync(&d);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).retired, 0);
	tl_close(consumer);
}

TEST(what_is_published_while_no_daemon_is_there_is_not_lost)
{
	cleanup_td struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	uint64_t version = begin(producer, "r");
	tl_status s = { .size = sizeof(s) };
	struct pollfd p = { .events = POLLIN };

	for (int i = 0; i < 2 * RING_SLOTS_MAX; i++) { /* until the consumer has mapped it all */
		must_be(put_ring(producer, "r", i), ++version);
		must(has(consumer, "r", i, version));
		if (i % 16 == 0)
			td_sync(&d); /* no slot comes too late, which would end the ring */
	}
	td_sync(&d);
	must_be(tl_get_status(consumer, &s), 0);
	process_stop(d.keeper); /* so that nobody starts another one */
	p.fd = process_pidfd((pid_t)s.daemon_pid);
	must_be(kill((pid_t)s.daemon_pid, SIGKILL), 0);
	must_be(poll(&p, 1, WAIT_MS), 1);
	close(p.fd);
	for (int i = 0; i < 20; i++) {
		must_be(put_ring(producer, "r", i), ++version);
		must(has(consumer, "r", i, version));
	}
	must_be(kill(d.keeper, SIGCONT), 0);
	must_be(rings(consumer), 1);
	must(has(consumer, "r", 19, version));
	for (int i = 0; i < 100; i++)
		must_be(put_ring(producer, "r", i), ++version);
	version = put_until_ring(producer, "r", 99, version);
	must(has(consumer, "r", 99, version));
	tl_close(producer);
	tl_close(consumer);
}

struct deleter {
	tl_client *client;
	uint64_t version; /* 0: whichever the name means */
	_Atomic pid_t tid;
	int r;
};

static void *delete_ring(void *arg)
{
	struct deleter *d = arg;

	atomic_store(&d->tid, (pid_t)syscall(SYS_gettid));
	d->r = d->version ? tl_delete_version(d->client, "r", d->version)
			  : tl_delete(d->client, "r");
	return NULL;
}

/* Deletes while the daemon stands still. It is killed after one more publication, and the next one
 * is asked. */
static int delete_amid_puts(const struct test_daemon *d, tl_client *producer, struct deleter *who)
{
	pid_t pid = daemon_of(producer);
	pthread_t thread;

	td_freeze(d);
	must_be(pthread_create(&thread, NULL, delete_ring, who), 0);
	until_it_sleeps(&who->tid);
	put_ring(producer, "r", 5);
	must_be(kill(pid, SIGKILL), 0);
	must_be(pthread_join(thread, NULL), 0);
	return who->r;
}

TEST(a_version_that_a_producer_puts_alone_is_no_proof_of_a_deletion)
{
	cleanup_td struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	tl_info info = { .size = sizeof(info) };
	uint64_t version = begin(producer, "r");

	must(has(other, "r", 1, version)); /* it has mapped the ring's page */
	must_be(delete_amid_puts(&d, producer,
				 &(struct deleter){ .client = other, .version = version }),
		-ESTALE);
	must_be(rings(other), 1);
	must(has(other, "r", 5, version + 1));
	must_be(delete_amid_puts(&d, producer, &(struct deleter){ .client = other }), 0);
	must_be(tl_stat(other, "r", &info), -ENOENT);
	must_be(rings(other), 0);
	must_be(put_ring(producer, "r", 6), version + 3);
	tl_close(producer);
	tl_close(other);
}

int main(void)
{
	return suite_run();
}
