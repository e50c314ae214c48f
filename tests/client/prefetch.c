/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetched drafts are used when the same size is put again, and given up when somebody needs the
 * space.
 */
#include "tests/client/common.h"

static tl_draft *create(tl_client *client, const char *name, int64_t n, int expected)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft = NULL;

	must_be(tl_create(client, name, &spec, &draft), expected);
	return draft;
}

TEST(a_put_into_a_ring_waits_for_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[1] = { 4096 };
	unsigned char data[4096];
	DLTensor t = bytes_tensor(data, shape);
	DLManagedTensorVersioned *got;
	int64_t start;

	memset(data, 1, sizeof(data));
	do {
		start = now_ns();
		for (int i = 0; i < 3; i++)
			must_be(tl_put(client, "a", &t, NULL, NULL), 0);
	} while (!td_status(&d).ring_slots && puts_were_slow(start));
	td_freeze(&d);
	memset(data, 2, sizeof(data));
	must_be(tl_put(client, "a", &t, NULL, NULL), 0); /* although the daemon cannot answer */
	td_thaw(&d);
	td_sync(&d);
	got = get(client, "a");
	must(all_bytes(got, 2, 4096));
	drop(got);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

TEST(prefetched_drafts_give_way)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm");
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_draft *draft;

	for (int i = 0; i < 4; i++)
		put_alone(client, "a", i, 4 * MIB);
	must_be(td_status(&d).drafts, 1); /* 4 MiB live, 4 prefetched */
	must_be(tl_delete(client, "a"), 0);
	draft = create(other, "b", 13 * MIB, 0); /* fits only without the prefetched one */
	must_be(td_status(&d).drafts, 1);
	tl_abort(draft);
	put_alone(client, "a", 7, 4 * MIB); /* the client finds it gone and asks for another */
	put_alone(client, "a", 8, 4 * MIB);
	put_alone(client, "a", 9, 4 * MIB);
	tl_close(client);
	tl_close(other);
	must_be(td_status(&d).drafts, 0);
}

/* Its client is idle, and has not heard of the next daemon. */
TEST(prefetched_drafts_give_way_to_the_next_daemon_too)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm",
						   .extra = with_keeper);
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_draft *draft;

	for (int i = 0; i < 4; i++)
		put_alone(client, "a", i, 4 * MIB);
	must_be(tl_delete(client, "a"), 0);
	must_be(td_status(&d).drafts, 1);
	daemon_kill(other);
	draft = create(other, "b", 13 * MIB, 0); /* fits only without the prefetched one */
	must_be(td_status(&d).drafts, 1);
	tl_abort(draft);
	put_alone(client, "a", 7, 4 * MIB);
	put_alone(client, "a", 8, 4 * MIB);
	tl_close(client);
	tl_close(other);
	must_be(td_status(&d).drafts, 0);
}

TEST(a_prefetched_draft_in_use_is_not_taken_back)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *t;
	tl_draft *draft;

	for (int i = 0; i < 3; i++)
		put_alone(client, "a", i, 4 * MIB);
	draft = create(client, "a", 4 * MIB, 0); /* takes the prefetched one into use */
	memset(tl_draft_tensor(draft)->data, 9, 4 * MIB);
	must_be(tl_delete(client, "a"), 0);
	create(other, "b", 13 * MIB, -ENOSPC);
	must_be(tl_commit(draft, &(uint64_t){ 0 }), 0);
	t = get(client, "a");
	must(all_bytes(t, 9, 4 * MIB));
	drop(t);
	tl_close(client);
	tl_close(other);
}

struct putting {
	tl_client *client;
	const DLTensor *source;
	_Atomic pid_t tid;
};

static void *put_it(void *arg)
{
	struct putting *p = arg;

	atomic_store(&p->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_put(p->client, "a", p->source, NULL, NULL), 0);
	return NULL;
}

/* The daemon reads another client's CREATE before the COMMIT. */
TEST(a_commit_on_its_way_survives_a_request_for_its_space)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm");
	tl_client *client = td_connect(&d);
	struct raw other = rc_open(&d);
	struct wire_create big = { .nbytes = 9 * MIB, .timeout_ns = -1 };
	int64_t shape[1] = { 4 * MIB };
	unsigned char *data = malloc(4 * MIB);
	DLTensor source = bytes_tensor(data, shape);
	struct putting p = { .client = client, .source = &source };
	DLManagedTensorVersioned *t;
	struct conn_message answer;
	pthread_t thread;

	must(data);
	memset(data, 9, 4 * MIB);
	for (int i = 0; i < 3; i++)
		put_alone(client, "a", i, 4 * MIB);
	must_be(td_status(&d).drafts, 1); /* the prefetched one: 4 MiB of the 8 in use */
	td_freeze(&d);
	must_be(rc_send(&other, WIRE_CREATE, &big, sizeof(big), -1), 0);
	must_be(pthread_create(&thread, NULL, put_it, &p), 0);
	until_it_sleeps(&p.tid);
	td_thaw(&d);
	must_be(rc_receive(&other, &answer), 0);
	must_be(answer.header.type, WIRE_DRAFT); /* it gets the space of the former "a" */
	close(answer.fd);
	must_be(pthread_join(thread, NULL), 0);
	free(data);
	t = get(client, "a");
	must(all_bytes(t, 9, 4 * MIB));
	drop(t);
	rc_close(&other);
	tl_close(client);
}

TEST(many_sizes_keep_few_prefetched_drafts)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 7; i++)
			put_alone(client, "many", i, (size_t)1000 << i);
	must(td_status(&d).drafts <= 4);
	must(td_status(&d).drafts > 0);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

TEST(a_refused_commit_is_told_to_who_asks_for_no_version)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 1024);
	tl_client *client = td_connect(&d);
	tl_draft *draft = create(client, "refused", 100, 0);
	unsigned char byte = 1;
	DLTensor scalar = { .data = &byte, .device = { kDLCPU, 0 }, .dtype = U8 };
	struct raw rc = rc_open(&d);

	rc_fill_bucket(&rc, "refused");
	must(tl_commit(draft, NULL) < 0);
	must(strstr(tl_last_error(), "refused: user"));
	must_be(tl_put(client, "b", &scalar, NULL, NULL), 0);
	rc_goodbye(&rc);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

/* The drafts are given back when the daemon reads again. */
TEST(a_commit_that_times_out_leaves_no_draft)
{
	enum { DRAFTS = 1000 };
	static tl_draft *drafts[DRAFTS];
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int i = 0, r = 0;

	for (int k = 0; k < DRAFTS; k++)
		drafts[k] = create(client, "a", 100 + k, 0);
	must_be(td_status(&d).drafts, DRAFTS);
	td_freeze(&d);
	client_set_timeout(client, 100 * MS);
	while (!r && i < DRAFTS)
		r = tl_commit(drafts[i++], NULL);
	must_be(r, -ETIMEDOUT);
	tl_abort(drafts[i++]);
	client_set_timeout(client, WAIT_S * SECOND);
	td_thaw(&d);
	eventually(td_status(&d).drafts == (uint64_t)(DRAFTS - i));
	while (i < DRAFTS)
		tl_abort(drafts[i++]);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

/* The socket is full and the client would wait for ever: nothing that gives up does. */
TEST(giving_up_does_not_wait_for_a_daemon_that_stands_still)
{
	enum { DRAFTS = 1000, LEFT = 10 };
	static tl_draft *drafts[DRAFTS];
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_group_item item = { .name = "group", .dtype = U8 };
	tl_group *group;
	int i = LEFT, r = 0;

	must_be(tl_group_create(client, &item, 1, NULL, &group), 0);
	for (int k = 0; k < DRAFTS; k++)
		drafts[k] = create(client, "a", 100 + k, 0);
	td_freeze(&d);
	client_set_timeout(client, 100 * MS);
	while (!r && i < DRAFTS)
		r = tl_commit(drafts[i++], NULL);
	must_be(r, -ETIMEDOUT);
	client_set_timeout(client, -1);
	tl_group_abort(group);
	for (int k = i; k < DRAFTS; k++)
		tl_abort(drafts[k]);
	must_be(tl_close(client), 0);
	for (int k = 0; k < LEFT; k++)
		tl_abort(drafts[k]);
	td_thaw(&d);
	td_sync(&d);
	must_be(td_status(&d).drafts, 0);
}

/* The kernel may take seconds to allocate it, so a large request has more time than others. */
TEST(a_request_for_memory_has_a_second_more_for_each_100_mb)
{
	enum { BYTES = 30000000 };
	int64_t shape[1] = { BYTES }, least = 50 * MS + BYTES * INT64_C(10), begun;
	const tl_group_item item = { .name = "b", .shape = shape, .ndim = 1, .dtype = U8 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_group *group;

	td_freeze(&d);
	client_set_timeout(client, 50 * MS);
	begun = now_ns();
	create(client, "a", BYTES, -ETIMEDOUT);
	must(now_ns() - begun >= least);
	must(strstr(tl_last_error(), "did not answer in time ("));
	must(strstr(tl_last_error(), "longer timeout"));
	begun = now_ns();
	must_be(tl_group_create(client, &item, 1, NULL, &group), -ETIMEDOUT);
	must(now_ns() - begun >= least);
	td_thaw(&d);
	client_set_timeout(client, WAIT_S * SECOND);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

int main(void)
{
	return suite_run();
}

/* Its messages no longer fit into the socket, and a draft that it did not read is one more to give
 * back. */
TEST(a_client_closes_though_the_daemon_does_not_read)
{
	enum { DRAFTS = 600 };
	cleanup_td struct test_daemon d = td_start();
	const tl_put_options o = { .size = sizeof(o), .ring = TL_RING_NONE };
	tl_client *client = td_connect(&d);
	static tl_draft *drafts[DRAFTS];
	static unsigned char data[4096];
	int64_t shape[1] = { sizeof(data) };
	DLTensor t = bytes_tensor(data, shape);

	for (int i = 0; i < DRAFTS; i++)
		drafts[i] = create(client, "draft", 100, 0);
	must_be(tl_put(client, "a", &t, &o, &(uint64_t){ 0 }), 0);
	must_be(tl_put(client, "a", &t, &o, NULL), 0); /* reads no answer */
	td_sync(&d);
	td_freeze(&d);
	for (int i = 0; i < DRAFTS; i++)
		tl_abort(drafts[i]);
	must_be(tl_close(client), 0);
	td_thaw(&d);
	eventually(td_status(&d).drafts == 0);
}
