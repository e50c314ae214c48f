/* SPDX-License-Identifier: Apache-2.0 */
/* No call is a cancellation point. */
#include <tensorlease/watch.h>

#include "tests/client/cancelled.h"

enum { SIZE = 4096 };

static int visit_info(const tl_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

static int visit_client(const tl_client_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

static void produce(struct caller *c, DLManagedTensorVersioned **got)
{
	static unsigned char data[SIZE];
	int64_t shape = SIZE;
	const tl_spec spec = { .size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = U8 };
	const tl_group_item item = { .name = "group", .shape = &shape, .ndim = 1, .dtype = U8 };
	DLTensor t = bytes_tensor(data, &shape);
	const DLTensor *source = &t;
	const char *name = "many";
	DLManagedTensorVersioned *exported;
	tl_group *group;
	uint64_t version;
	tl_draft *draft;

	for (int i = 0; i < 40; i++) /* a ring begins, and its slots come back */
		step(tl_put(c->client, "r", &t, NULL, i % 2 ? NULL : &version), 0);
	for (int i = 0; i < 5; i++) {
		step(tl_create(c->client, "d", &spec, &draft), 0);
		step(tl_commit(draft, i % 2 ? NULL : &version), 0);
	}
	step(tl_create(c->client, "d", &spec, &draft), 0);
	tl_abort(draft);
	step(tl_create(c->client, "d", &spec, &draft), 0);
	step(tl_draft_to_dlpack(draft, &exported), 0);
	step(tl_publish(c->client, "e", exported, NULL, NULL, &version), 0);
	step(tl_group_create(c->client, &item, 1, NULL, &group), 0);
	step(tl_group_commit(group), 0);
	step(tl_put_many(c->client, &name, &source, 1, NULL), 0);
	step(tl_get(c->client, "e", NULL, got), 0);
	(*got)->deleter(*got);
	step(tl_get(c->client, "d", NULL, got), 0);
	step(tl_create(c->client, "d", &spec, &draft), 0);
	step(tl_commit(draft, &version), 0);
	(*got)->deleter(*got); /* of a tensor that was replaced, which the daemon hears of */
	step(tl_get(c->client, "e", NULL, got), 0);
	c->line = 0;
}

/* Several threads copy, and end. */
static void copy_much(struct caller *c)
{
	enum { LARGE = 3 << 20 };
	static unsigned char from[LARGE], to[2][LARGE];
	int64_t shape[1] = { LARGE }, shapes[2] = { 2, LARGE };
	const tl_put_options o = { .size = sizeof(o), .threads = 3 };
	const tl_gather_options g = { .size = sizeof(g), .threads = 3 };
	const char *const names[2] = { "large", "large" };
	DLTensor source = bytes_tensor(from, shape), copies = bytes_tensor(to[0], shapes);
	const tl_gather_out out = { .tensor = &copies };

	copies.ndim = 2;
	step(tl_put(c->client, "large", &source, &o, NULL), 0);
	step(tl_gather(c->client, names, 2, &out, 1, &g), 0);
	c->line = 0;
}

static void consume(struct caller *c, DLManagedTensorVersioned *held)
{
	const char *names[] = { "d", "e" };
	tl_wait_item item = { .name = "d", .newer_than = 1000 };
	tl_get_options o = { .size = sizeof(o), .newer_than = 1000, .timeout_ns = MS };
	DLManagedTensorVersioned *t, *two[2];
	tl_info info = { .size = sizeof(info) };
	size_t which;

	for (int i = 0; i < 3; i++) {
		step(tl_get(c->client, "r", NULL, &t), 0);
		drop(t);
	}
	step(tl_get(c->client, "d", &o, &t), -ETIMEDOUT);
	step(tl_wait_many(c->client, &item, 1, &TL_INIT(tl_wait_options, .timeout_ns = MS), &which),
	     -ETIMEDOUT);
	step(tl_get_many(c->client, names, 2, NULL, two), 0);
	drop(two[0]);
	drop(two[1]);
	step(tl_remap(held, TL_MODE_COPY_ON_WRITE, &t), 0);
	drop(t);
	step(tl_publish(c->client, "second", held, NULL, NULL, NULL), 0); /* which gives it back */
	step(tl_stat(c->client, "d", &info), 0);
	step(tl_list(c->client, NULL, visit_info, NULL), 0);
	c->line = 0;
}

static void look_around(struct caller *c)
{
	tl_watch_event event = { .size = sizeof(event) };
	tl_status status = { .size = sizeof(status) };
	tl_watch *watch;
	int fd;

	step(tl_watch_open(c->client, "d", NULL, &watch), 0);
	step(tl_watch_fd(watch, &fd), 0);
	step(tl_watch_next(watch, NULL, &event), 0);
	step(tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = MS), &event), -ETIMEDOUT);
	step(tl_watch_close(watch), 0);
	step(tl_claim(c->client, "claimed", NULL), 0);
	step(tl_unclaim(c->client, "claimed"), 0);
	step(tl_unclaim_many(c->client, (const char *[]){ "claimed" }, 1), 0);
	step(tl_delete(c->client, "d"), 0);
	step(tl_list_clients(c->client, visit_client, NULL), 0);
	step(tl_get_status(c->client, &status), 0);
	c->line = 0;
}

static void make_all_calls(struct caller *c)
{
	const tl_connect_options o = { .size = sizeof(o),
				       .address = c->d->socket,
				       .timeout_ns = WAIT_S * SECOND };
	DLManagedTensorVersioned *held = NULL;
	tl_client *other;

	produce(c, &held);
	if (!c->line)
		consume(c, held);
	if (!c->line)
		look_around(c);
	if (!c->line)
		copy_much(c);
	if (c->line)
		return;
	step(tl_connect(&o, &other), 0);
	step(tl_close(other), 0);
	c->line = 0;
}

TEST(no_call_is_a_cancellation_point)
{
	struct test_daemon d = td_start(.no_keeper = "the next daemon begins anew");
	struct caller c = { .d = &d, .client = td_connect(&d) };
	struct test_daemon next;

	must_not_end_it(&c, make_all_calls);
	td_kill(&d);
	next = td_start(.socket = d.socket);
	c.d = &next;
	must_not_end_it(&c, make_all_calls);
	must_be(tl_close(c.client), 0);
	td_stop(&next);
	td_stop(&d);
}

static void *fork_though_cancelled(void *arg)
{
	pid_t *pid = arg;

	pthread_cancel(pthread_self());
	*pid = fork();
	if (*pid == 0)
		_exit(0);
	pthread_testcancel();
	return NULL;
}

/* It holds a tensor, so that the child gets a connection. */
TEST(a_fork_is_no_cancellation_point)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "the sanitizer's allocator may be locked in the child");
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *held;
	pthread_t thread;
	pid_t pid = 0;
	int status;

	put_bytes(client, "d", 1, SIZE);
	held = get(client, "d");
	must_be(pthread_create(&thread, NULL, fork_though_cancelled, &pid), 0);
	must_be(pthread_join(thread, NULL), 0);
	must(pid > 0);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	drop(held);
	must_be(put_bytes(client, "d", 2, SIZE), 2);
	must_be(tl_close(client), 0);
}

static void sleep_a_little(DLManagedTensorVersioned *t)
{
	(void)t;
	usleep(1);
}

static void publish_and_sleep(struct caller *c)
{
	static unsigned char data[SIZE];
	static int64_t shape = SIZE;
	DLManagedTensorVersioned t = { .version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
				       .dl_tensor = bytes_tensor(data, &shape),
				       .deleter = sleep_a_little };

	step(tl_publish(c->client, "d", &t, NULL, NULL, NULL), 0);
	c->line = 0;
}

/* The library holds counts while it calls the deleter. */
TEST(a_deleter_is_no_cancellation_point)
{
	cleanup_td struct test_daemon d = td_start();
	struct caller c = { .client = td_connect(&d) };

	must_not_end_it(&c, publish_and_sleep);
	must_be(tl_close(c.client), 0);
}

struct producer {
	tl_client *client;
	_Atomic unsigned commits;
};

static void *commit_until_cancelled(void *arg)
{
	struct producer *p = arg;
	int64_t shape = SIZE;
	const tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = U8, .ring = TL_RING_NONE
	};
	uint64_t version;
	tl_draft *draft;

	for (;;) {
		must_be(tl_create(p->client, "d", &spec, &draft), 0);
		must_be(tl_commit(draft, &version), 0);
		atomic_fetch_add(&p->commits, 1);
		pthread_testcancel();
	}
	return NULL;
}

TEST(a_cancelled_producer_leaves_its_client_to_others)
{
	cleanup_td struct test_daemon d = td_start();
	struct producer p = { .client = td_connect(&d) };

	for (unsigned round = 0; round < 50; round++) {
		pthread_t thread;
		void *result;

		atomic_store(&p.commits, 0);
		must_be(pthread_create(&thread, NULL, commit_until_cancelled, &p), 0);
		eventually(atomic_load(&p.commits) > round);
		must_be(pthread_cancel(thread), 0);
		must_be(pthread_join(thread, &result), 0);
		must(result == PTHREAD_CANCELED);
		put_alone(p.client, "d", 1, SIZE);
	}
	must_be(tl_close(p.client), 0);
	must_be(td_status(&d).drafts, 0);
}

int main(void)
{
	return suite_run();
}
