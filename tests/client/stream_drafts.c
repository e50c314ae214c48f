/* SPDX-License-Identifier: Apache-2.0 */
/* Items that are written in place, and the memory of items of many sizes. */
#include "tests/client/streams.h"
#include "tests/harness/child.h"

static tl_item_draft *draft_of(tl_stream *s, size_t n, size_t metadata_size)
{
	const tl_stream_put_options o = { .size = sizeof(o),
					  .timeout_ns = WAIT_S * SECOND,
					  .metadata_size = metadata_size };
	int64_t shape[1] = { (int64_t)n };
	DLTensor t = bytes_tensor(NULL, shape);
	tl_item_draft *d = NULL;

	must_be(tl_stream_draft(s, &(tl_part){ .tensor = &t }, 1, &o, &d), 0);
	return d;
}

static int try_commit(tl_item_draft *d, int64_t timeout_ns)
{
	const tl_stream_put_options o = { .size = sizeof(o), .timeout_ns = timeout_ns };

	return tl_item_draft_commit(d, &o, NULL);
}

static void fill(tl_item_draft *d, int value)
{
	const DLTensor *t = tl_item_draft_tensor(d, 0);

	memset(t->data, value, (size_t)t->shape[0]);
}

TEST(an_item_is_written_in_place)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	int64_t shapes[2][2] = { { 3, 5 }, { 7, 0 } };
	DLTensor a = bytes_tensor(NULL, shapes[0]), b = bytes_tensor(NULL, shapes[1]);
	const tl_part parts[] = { { .name = "image", .tensor = &a },
				  { .name = "depth", .tensor = &b } };
	tl_stream_put_options o = { .size = sizeof(o), .metadata_size = 8 };
	tl_item_info info = { .size = sizeof(info) };
	tl_item_draft *draft = NULL;
	const char *name;
	uint64_t number;
	tl_item *item;

	a.ndim = 2;
	b.dtype = (DLDataType){ TL_DTYPE_FLOAT, 32, 1 };
	must_be(tl_stream_draft(s, parts, 2, &o, &draft), 0);
	must(!tl_item_draft_tensor(draft, 2));
	must_be(tl_item_draft_tensor(draft, 0)->ndim, 2);
	must_be(tl_item_draft_tensor(draft, 0)->strides[0], 5);
	memset(tl_item_draft_tensor(draft, 0)->data, 1, 15);
	for (int i = 0; i < 7; i++)
		((float *)tl_item_draft_tensor(draft, 1)->data)[i] = (float)i;
	must_be(try_take(sub, 0, &item), -EAGAIN);
	o.metadata = "seven+2!!";
	o.metadata_size = 9;
	must_be(tl_item_draft_commit(draft, &o, NULL), -EINVAL);
	o.metadata_size = 5;
	must_be(tl_item_draft_commit(draft, &o, &number), 0);
	item = take(sub);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.number, number);
	must_be(info.count, 2);
	must_be(info.metadata_size, 5);
	must(!memcmp(info.metadata, "seven", 5));
	must_be(((const unsigned char *)tl_item_tensor(item, 0, &name)->data)[14], 1);
	must(!strcmp(name, "image"));
	must(((const float *)tl_item_tensor(item, 1, &name)->data)[6] == 6);
	must(!strcmp(name, "depth"));
	tl_item_release(item);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

TEST(a_draft_waits_for_room_and_stays_a_draft)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item_draft *drafts[4];

	for (int i = 0; i < 4; i++) {
		drafts[i] = draft_of(s, 5000, 0);
		fill(drafts[i], i);
	}
	must_be(try_commit(drafts[3], 0), 0);
	must_be(try_commit(drafts[2], 0), 0);
	must_be(try_commit(drafts[1], 0), -EAGAIN);
	must_be(try_commit(drafts[1], MS), -ETIMEDOUT);
	must_be(try_put(s, 9, 100, 0), -EAGAIN);
	take_value(sub, 3, 5000);
	must_be(try_commit(drafts[1], 0), 0);
	must_be(tl_item_draft_abort(drafts[0]), 0);
	take_value(sub, 2, 5000);
	put_item(s, 7, 5000);
	take_value(sub, 1, 5000);
	take_value(sub, 7, 5000);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
	td_sync(&d);
}

TEST(a_draft_outlives_its_stream_and_its_tensors_both)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item_draft *draft = draft_of(s, 5000, 0), *other = draft_of(s, 5000, 0);
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_item_draft_to_dlpack(draft, 1, &t), -EINVAL);
	must_be(tl_item_draft_to_dlpack(draft, 0, &t), 0);
	must_be(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY, 0);
	memset(t->dl_tensor.data, 5, 5000);
	must_be(try_commit(draft, 0), 0);
	take_value(sub, 5, 5000);
	fill(other, 6);
	must_be(tl_stream_close(s), 0);
	must_be(try_commit(other, 0), -ECANCELED);
	fill(other, 7);
	must_be(tl_item_draft_abort(other), 0);
	must_be(((unsigned char *)t->dl_tensor.data)[4999], 5);
	t->deleter(t);
	tl_subscription_close(sub);
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	td_must_be_empty(&d);
}

static void child_of_draft(tl_item_draft *draft, DLManagedTensorVersioned *t, tl_stream *s)
{
	must_be(try_commit(draft, 0), -ECHILD);
	t->deleter(t); /* it does not have the memory */
	must_be(tl_item_draft_abort(draft), 0);
	must_be(tl_stream_close(s), 0);
	_exit(0);
}

TEST(a_draft_is_its_processs)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item_draft *draft = draft_of(s, 5000, 0);
	DLManagedTensorVersioned *t = NULL;
	int status = -1;
	pid_t pid;

	must_be(tl_item_draft_to_dlpack(draft, 0, &t), 0);
	fill(draft, 5);
	pid = fork();
	must(pid >= 0);
	if (!pid)
		child_of_draft(draft, t, s);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	must_be(try_commit(draft, 0), 0);
	take_value(sub, 5, 5000);
	t->deleter(t);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

TEST(drafts_that_cannot_be)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	int64_t shape[1] = { -1 };
	DLTensor t = bytes_tensor(NULL, shape);
	const tl_part part = { .tensor = &t }, none = { 0 };
	tl_stream_put_options o = { .size = sizeof(o) };
	tl_item_draft *draft = NULL;

	must_be(tl_stream_draft(NULL, &part, 1, NULL, &draft), -EINVAL);
	must_be(tl_stream_draft(s, &part, 1, NULL, NULL), -EINVAL);
	must_be(tl_stream_draft(s, &part, 0, NULL, &draft), -EINVAL);
	must_be(tl_stream_draft(s, &none, 1, NULL, &draft), -EINVAL);
	must_be(tl_stream_draft(s, &part, 1, NULL, &draft), -EINVAL);
	shape[0] = INT64_MAX;
	must_be(tl_stream_draft(s, &part, 1, NULL, &draft), -EINVAL);
	shape[0] = 1;
	o.metadata_size = TL_STREAM_METADATA_MAX + 1;
	must_be(tl_stream_draft(s, &part, 1, &o, &draft), -EINVAL);
	must_be(tl_item_draft_abort(NULL), 0);
	must_be(tl_item_draft_commit(NULL, NULL, NULL), -EINVAL);
	tl_stream_close(s);
	tl_close(client);
}

/* ---- the sizes of items ---- */

enum { LARGE = 8 << 20, ROUNDS = 3000 };

/* Without what the daemon keeps warm, and what a process has mapped still. */
static uint64_t used(const struct test_daemon *d)
{
	struct tl_status s = td_status(d);

	return s.bytes_used - s.bytes_warm - s.bytes_kept;
}

static void nothing_is_left(const struct test_daemon *d)
{
	must_be(td_status(d).tensors + td_status(d).retired + td_status(d).drafts, 0);
	must_be(used(d), 0);
}

TEST(memory_of_large_items_does_not_stay)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 4);
	tl_subscription *sub = subscribe_as(s, 0);

	for (int i = 0; i < 10; i++) {
		put_item(s, i, LARGE);
		if (i >= 3)
			take_value(sub, i - 3, LARGE);
	}
	must(used(&d) >= LARGE * 4UL);
	for (int i = 7; i < 10; i++)
		take_value(sub, i, LARGE);
	for (int i = 0; i < ROUNDS; i++) {
		put_item(s, i % 251, 1000);
		take_value(sub, i % 251, 1000);
	}
	eventually(used(&d) < LARGE);
	for (int i = 0; i < 10; i++) { /* and they come again */
		put_item(s, i, LARGE);
		take_value(sub, i, LARGE);
	}
	tl_subscription_close(sub);
	tl_stream_close(s);
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	nothing_is_left(&d);
}

TEST(items_of_all_sizes_in_turn)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	const size_t sizes[] = { 1, 1 << 20, 5000, 70000, 300, 1 << 18 };
	uint64_t settled = 0;

	for (int i = 0; i < ROUNDS; i++) {
		put_item(s, i % 251, sizes[i % 6]);
		if (i >= 3)
			take_value(sub, (i - 3) % 251, sizes[(i - 3) % 6]);
		if (i == ROUNDS / 3)
			settled = used(&d);
	}
	must(used(&d) <= settled);
	must(used(&d) <= 16 << 20);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

TEST(small_items_make_room_for_a_large_one)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 << 20);
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 8);
	tl_subscription *sub = subscribe_as(s, 0);

	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 7; i++)
			put_item(s, i, 2 << 20);
		for (int i = 0; i < 7; i++)
			take_value(sub, i, 2 << 20);
		put_item(s, 99, 12 << 20);
		take_value(sub, 99, 12 << 20);
	}
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

/* The text tells what is short: memory, or who takes. */
TEST(a_producer_has_no_more_than_its_bytes)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_as(client, "s",
			       (tl_stream_options){ .mode = TL_STREAM_BROADCAST,
						    .depth = 8,
						    .keep = 8,
						    .max_bytes = 4 * MIB - 1 });
	tl_subscription *late, *sub;

	for (int i = 1; i <= 20; i++) {
		put_item(s, i, MIB); /* nobody subscribes: what is kept goes */
		must(used(&d) < 5 * MIB);
	}
	late = subscribe_as(s, TL_SUBSCRIBE_KEPT);
	for (int i = 18; i <= 20; i++) {
		take_value(late, i, MIB);
	}
	tl_subscription_close(late);

	sub = subscribe_as(s, 0);
	for (int i = 1; i <= 3; i++)
		put_item(s, i, MIB);
	must_be(try_put(s, 4, MIB, 0), -EAGAIN);
	must_be(try_put(s, 4, MIB, 50 * MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "max_bytes"));
	for (int i = 1; i <= 5; i++) {
		take_value(sub, i, MIB);
		if (i <= 2)
			put_item(s, 3 + i, MIB);
	}
	put_item(s, 6, 8 * MIB); /* a single one always may */
	take_value(sub, 6, 8 * MIB);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

TEST(a_full_queue_says_why)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 << 20);
	tl_client *client = td_connect(&d);
	tl_stream *s = open_queue(client, "s", 8);
	tl_subscription *sub;

	for (int i = 0; i < 8; i++)
		put_item(s, i, 100);
	must_be(try_put(s, 8, 100, MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "8 items are not taken, and nobody subscribes"));
	sub = subscribe_as(s, 0);
	must_be(try_put(s, 8, 100, MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "8 items are not taken"));
	must(!strstr(tl_last_error(), "nobody"));
	for (int i = 0; i < 8; i++)
		take_value(sub, i, 100);
	for (int i = 0; i < 3; i++)
		put_item(s, i, 4 << 20);
	must_be(try_put(s, 3, 4 << 20, MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "has no memory for a further item"));
	take_value(sub, 0, 4 << 20);
	put_item(s, 3, 4 << 20);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

/* A row that leaves is not lost if the daemon dies at it. */
TEST(sizes_change_while_daemons_die)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 4);
	tl_subscription *sub = subscribe_as(s, 0);

	for (int i = 0; i < ROUNDS; i++) {
		size_t size = i / 500 % 2 ? 100 : 1 << 20;

		put_item(s, i % 251, size);
		take_value(sub, i % 251, size);
		if (i % 1000 == 300 && !test_without_keepers())
			daemon_kill(client);
	}
	tl_subscription_close(sub);
	tl_stream_close(s);
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	nothing_is_left(&d);
}

int main(void)
{
	return suite_run();
}
