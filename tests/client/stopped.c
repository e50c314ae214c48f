/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of many threads that get no processor for a while. All threads ask, and the answers come
 * before any thread can read them: more than the socket takes, and more descriptors than a client
 * may leave unread. No call may fail for that.
 */
#include <dirent.h>
#include <poll.h>
#include <signal.h>

#include "client/connection/client.h"
#include "proto/wire.h"
#include "tests/client/common.h"

enum { THREADS_MAX = 200, LARGE = 300 << 10, SMALL = 1000 };

struct many {
	unsigned threads, rounds;
	int (*call)(tl_client *client, unsigned thread, unsigned round);
	tl_client *client;
	pthread_barrier_t barrier;
	_Atomic unsigned failed, next;
};

static void *run(void *arg)
{
	struct many *m = arg;
	unsigned thread = atomic_fetch_add(&m->next, 1);

	for (unsigned round = 0; round < m->rounds; round++) {
		pthread_barrier_wait(&m->barrier);
		if (m->call(m->client, thread, round) && atomic_fetch_add(&m->failed, 1) < 3)
			print_error("thread %u: %s\n", thread, tl_last_error());
		pthread_barrier_wait(&m->barrier);
	}
	return NULL;
}

static int many_threads(const struct test_daemon *d, void *arg)
{
	static struct many m;
	pthread_t threads[THREADS_MAX] = { 0 };

	m = *(const struct many *)arg;
	m.client = td_connect(d);
	must_be(pthread_barrier_init(&m.barrier, NULL, m.threads + 1), 0);
	for (unsigned i = 0; i < m.threads; i++)
		must_be(pthread_create(&threads[i], NULL, run, &m), 0);
	for (unsigned round = 0; round < m.rounds; round++) {
		pause_at(round);
		pthread_barrier_wait(&m.barrier);
		parent_tell(round); /* all were woken */
		pthread_barrier_wait(&m.barrier);
	}
	pause_at(m.rounds);
	for (unsigned i = 0; i < m.threads; i++)
		must_be(pthread_join(threads[i], NULL), 0);
	must_be(m.failed, 0);
	tl_close(m.client);
	return 0;
}

/* Whether all threads of the process are in that state. */
static bool all_are(pid_t pid, char state)
{
	char path[300], now;
	struct dirent *e;
	bool all = true;
	DIR *dir;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	must(dir);
	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, e->d_name);
		f = fopen(path, "re");
		if (!f)
			continue; /* it has ended */
		all &= fscanf(f, "%*d (%*[^)]) %c", &now) == 1 && now == state;
		fclose(f);
	}
	closedir(dir);
	return all;
}

static void stop(pid_t pid)
{
	unsigned rounds = 0;

	/* See until_it_sleeps(). Some may pause again and again, until others are answered. */
	for (int asleep = 0; asleep < 10 && rounds < 100; test_pause(&rounds))
		asleep = all_are(pid, 'S') ? asleep + 1 : 0;
	must_be(kill(pid, SIGSTOP), 0);
	eventually(all_are(pid, 'T'));
}

/* In each round each thread calls once. */
static void no_call_may_fail(const struct test_daemon *d, struct many m)
{
	struct test_child child = child_start_ready(d, many_threads, &m);

	for (unsigned round = 0; round < m.rounds; round++) {
		td_freeze(d);
		must_be(child_step(&child), round);
		stop(child.pid);
		td_thaw(d);
		td_sync(d); /* it has done all that it can without the client */
		must_be(kill(child.pid, SIGCONT), 0);
		must_be(child_await(&child), round + 1);
	}
	child_finish(&child);
}

static int put_own(tl_client *client, unsigned thread, size_t n)
{
	static const unsigned char data[LARGE];
	int64_t shape[1] = { (int64_t)n };
	DLTensor t = bytes_tensor((void *)(uintptr_t)data, shape);
	uint64_t version;
	char name[16];

	snprintf(name, sizeof(name), "n%u", thread);
	return tl_put(client, name, &t, NULL, &version);
}

static int put_large(tl_client *client, unsigned thread, unsigned round)
{
	(void)round;
	return put_own(client, thread, LARGE);
}

static int put_medium(tl_client *client, unsigned thread, unsigned round)
{
	(void)round;
	return put_own(client, thread, 64 << 10);
}

TEST(threads_that_create)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 1 << 30);

	no_call_may_fail(&d, (struct many){ 20, 2, put_large });
	no_call_may_fail(&d, (struct many){ 64, 2, put_large });
	no_call_may_fail(&d, (struct many){ 64, 1, put_medium });
}

/* In one of the rounds all begin rings, and ask for several drafts at once. */
TEST(threads_that_begin_rings)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 1 << 30);

	no_call_may_fail(&d, (struct many){ 20, 8, put_large });
}

static int get_one(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *t;
	int r = tl_get(client, name, NULL, &t);

	if (!r)
		drop(t);
	return r;
}

static int get_ring(tl_client *client, unsigned thread, unsigned round)
{
	(void)thread;
	(void)round;
	return get_one(client, "ring");
}

static int get_own(tl_client *client, unsigned thread, unsigned round)
{
	char name[16];

	(void)round;
	snprintf(name, sizeof(name), "n%u", thread);
	return get_one(client, name);
}

TEST(threads_that_get)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 1 << 30);
	tl_client *producer = td_connect(&d);

	for (int i = 0; i < 50; i++)
		put_bytes(producer, "ring", i, SMALL);
	no_call_may_fail(&d, (struct many){ 64, 1, get_ring });
	for (unsigned i = 0; i < 64; i++)
		must_be(put_own(producer, i, LARGE), 0);
	no_call_may_fail(&d, (struct many){ 64, 1, get_own });
	tl_close(producer);
}

/* Of a thousand that wait and try again some would count at any time, and none could begin. */
TEST(threads_that_wait_to_map_do_not_count_as_those_that_do)
{
	enum { WAITING = 64, LOOKS = 20000000, MOST = WIRE_FDS_UNREAD_MAX / 2 };
	cleanup_td struct test_daemon d = td_start(.capacity = 1 << 30);
	struct many m = { WAITING, 1, get_own, td_connect(&d) };
	struct session *s = atomic_load(&m.client->session);
	tl_client *producer = td_connect(&d);
	pthread_t threads[WAITING];
	unsigned most = 0, now;

	for (unsigned i = 0; i < WAITING; i++)
		must_be(put_own(producer, i, LARGE), 0);
	must_be(pthread_barrier_init(&m.barrier, NULL, WAITING + 1), 0);
	for (unsigned i = 0; i < WAITING; i++)
		must_be(pthread_create(&threads[i], NULL, run, &m), 0);
	td_freeze(&d);
	pthread_barrier_wait(&m.barrier);
	eventually(atomic_load(&s->maps) >= MOST);
	for (unsigned i = 0; i < LOOKS && most <= MOST; i++) {
		now = atomic_load_explicit(&s->maps, memory_order_relaxed);
		most = now > most ? now : most;
	}
	td_thaw(&d);
	must_be(most, MOST);
	pthread_barrier_wait(&m.barrier);
	for (unsigned i = 0; i < WAITING; i++)
		must_be(pthread_join(threads[i], NULL), 0);
	must_be(m.failed, 0);
	pthread_barrier_destroy(&m.barrier);
	tl_close(m.client);
	tl_close(producer);
}

static int delete_none(tl_client *client, unsigned thread, unsigned round)
{
	char name[TL_NAME_MAX + 1];

	(void)thread;
	(void)round;
	memset(name, 'x', TL_NAME_MAX); /* so that the answers are long */
	name[TL_NAME_MAX] = '\0';
	return tl_delete(client, name) != -ENOENT;
}

TEST(threads_whose_answers_have_no_descriptors)
{
	cleanup_td struct test_daemon d = td_start();

	no_call_may_fail(&d, (struct many){ THREADS_MAX, 1, delete_none });
}

/* ---- One thread ---- */

static _Atomic bool in_handler, may_go_on;

static void stand_still(int signal)
{
	(void)signal;
	atomic_store(&in_handler, true);
	while (!atomic_load(&may_go_on))
		poll(NULL, 0, 1);
}

static void *waits_for_claim(void *arg)
{
	const tl_claim_options forever = { .size = sizeof(forever), .timeout_ns = -1 };

	must_be(tl_claim(arg, "claimed", &forever), 0);
	return NULL;
}

static bool somebody_reads(tl_client *client)
{
	struct session *s = atomic_load(&client->session);
	bool reads;

	pthread_mutex_lock(&s->receive_mutex);
	reads = s->reading;
	pthread_mutex_unlock(&s->receive_mutex);
	return reads;
}

/* The thread that reads the answers of all stands still. */
TEST(a_call_finds_its_answer_though_the_thread_that_reads_does_not)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	struct sigaction on = { .sa_handler = stand_still };
	pthread_t thread;

	must_be(sigaction(SIGUSR1, &on, NULL), 0);
	put_bytes(other, "a", 1, SMALL);
	must_be(tl_claim(other, "claimed", NULL), 0);
	must_be(pthread_create(&thread, NULL, waits_for_claim, client), 0);
	eventually(share_used(other, TL_SHARE_WAITS) == 2 && somebody_reads(client));
	must_be(pthread_kill(thread, SIGUSR1), 0);
	eventually(atomic_load(&in_handler));
	client_set_timeout(client, 2 * SECOND); /* all of it passes, and the daemon needs some */
	must_be(tl_delete(client, "a"), 0);
	atomic_store(&may_go_on, true);
	must_be(tl_unclaim(other, "claimed"), 0);
	must_be(pthread_join(thread, NULL), 0);
	tl_close(client);
	tl_close(other);
}

int main(void)
{
	return suite_run();
}
