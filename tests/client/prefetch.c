/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetched drafts are used when the same size is put again, and given up when somebody needs the
 * room.
 */
#include "tests/client/common.h"

static tl_draft *create(tl_client *client, const char *name, int64_t n, int expected)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft = NULL;

	must_be(tl_create(client, name, &spec, &draft), expected);
	return draft;
}

static void put_again(uint32_t ring, unsigned drafts)
{
	cleanup_td struct test_daemon d = td_start();
	const tl_put_options o = { .size = sizeof(o), .ring = ring };
	tl_client *client = td_connect(&d);
	int64_t shape[1] = { 4096 };
	unsigned char data[4096];
	DLTensor t = bytes_tensor(data, shape);
	DLManagedTensorVersioned *got;

	memset(data, 1, sizeof(data));
	for (int i = 0; i < 3; i++)
		must_be(tl_put(client, "a", &t, &o, &(uint64_t){ 0 }), 0);
	must_be(td_status(&d).drafts, drafts);
	td_freeze(&d);
	memset(data, 2, sizeof(data));
	must_be(tl_put(client, "a", &t, &o, NULL), 0); /* although the daemon cannot answer */
	td_thaw(&d);
	td_settle(&d);
	got = get(client, "a");
	must(all_bytes(got, 2, 4096));
	drop(got);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

TEST(a_repeated_put_waits_for_nobody)
{
	put_again(TL_RING_NONE, 1); /* the prefetched one */
	put_again(TL_RING_AUTO, 0);
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

/*
 * The producer gives up its hold as soon as it has sent COMMIT, and the daemon may read another
 * client's CREATE before that.
 */
TEST(a_commit_on_its_way_survives_a_request_for_its_room)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm");
	tl_client *client = td_connect(&d);
	struct raw other = rc_open(&d);
	struct wire_create big = { .nbytes = 9 * MIB, .timeout_ns = -1 };
	int64_t shape[1] = { 4 * MIB };
	unsigned char *data = malloc(4 * MIB);
	DLTensor source = bytes_tensor(data, shape);
	DLManagedTensorVersioned *t;
	struct conn_message answer;

	must(data);
	memset(data, 9, 4 * MIB);
	for (int i = 0; i < 3; i++)
		put_alone(client, "a", i, 4 * MIB);
	must_be(td_status(&d).drafts, 1); /* the prefetched one: 4 MiB of the 8 in use */
	td_freeze(&d);
	must_be(rc_send(&other, WIRE_CREATE, &big, sizeof(big), -1), 0);
	must_be(tl_put(client, "a", &source, NULL, NULL), 0);
	free(data);
	td_thaw(&d);
	must_be(rc_receive(&other, &answer), 0);
	must_be(answer.header.type, WIRE_DRAFT); /* it gets the room of the former "a" */
	close(answer.fd);
	td_settle(&d);
	t = get(client, "a");
	must(all_bytes(t, 9, 4 * MIB));
	drop(t);
	must_be(tl_delete(client, "a"), 0); /* no refusal is told late */
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

TEST(a_refused_commit_is_told_at_the_next_call)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_draft *draft = create(client, "refused", 100, 0);
	unsigned char byte = 1;
	DLTensor scalar = { .data = &byte, .device = { kDLCPU, 0 }, .dtype = U8 };

	tl_draft_tensor(draft)->shape[0] = MIB; /* more than it has */
	must_be(tl_commit(draft, NULL), 0);
	td_settle(&d);
	must(tl_put(client, "b", &scalar, NULL, NULL) < 0);
	must(strstr(tl_last_error(), "an earlier commit"));
	must_be(tl_put(client, "b", &scalar, NULL, NULL), 0); /* it is told once */
	tl_close(client);
}

/* Neither COMMIT nor ABORT can be sent: the draft is given back with the next message. */
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
	td_settle(&d);
	must_be(td_status(&d).drafts, DRAFTS - i + 2);
	eventually((r = tl_delete(client, "nothing")) != -ETIMEDOUT);
	must_be(r, -ENOENT);
	must_be(td_status(&d).drafts, DRAFTS - i);
	while (i < DRAFTS)
		tl_abort(drafts[i++]);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

int main(void)
{
	return suite_run();
}
