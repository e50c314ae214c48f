/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of many tensors in one array: tl_gather(). */
#include "tests/client/common.h"

enum { MANY = 64, BATCHES = 8, ROW = 1000 };

struct batch {
	char text[MANY][32];
	const char *names[MANY];
	uint64_t offsets[MANY];
	unsigned char data[MANY][ROW];
	int64_t shape[2];
	DLTensor tensor;
	tl_gather_out out;
};

static struct batch *batch_new(void)
{
	struct batch *b = calloc(1, sizeof(*b));

	must(b);
	b->shape[0] = MANY;
	b->shape[1] = ROW;
	b->tensor = (DLTensor){
		.data = b->data, .device = { kDLCPU, 0 }, .ndim = 2, .dtype = U8, .shape = b->shape
	};
	b->out.tensor = &b->tensor;
	for (int i = 0; i < MANY; i++)
		b->names[i] = b->text[i];
	return b;
}

static bool row_is(const struct batch *b, int i, int value, size_t n)
{
	for (size_t k = 0; k < n; k++)
		if (b->data[i][k] != value)
			return false;
	return true;
}

static int gather_rows(tl_client *client, struct batch *b)
{
	return tl_gather(client, b->names, MANY, &b->out, 1, NULL);
}

TEST(a_tensor_is_a_row)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct batch *b = batch_new();

	for (int i = 0; i < MANY; i++) {
		snprintf(b->text[i], sizeof(b->text[i]), "sample/%d", i * 7 % 16);
		put_bytes(client, b->text[i], i * 7 % 16, ROW);
	}
	must_be(gather_rows(client, b), 0);
	for (int i = 0; i < MANY; i++)
		must(row_is(b, i, i * 7 % 16, ROW));
	td_sync(&d);
	must_be(leases_of(client, getpid()), 0); /* all were released */
	must_be(tl_gather(client, NULL, 0, NULL, 0, NULL), 0);
	tl_close(client);
	free(b);
}

/* Of two fields that lie in larger tensors each row comes from its place. */
TEST(parts_of_tensors_are_gathered)
{
	enum { SECOND_ROW = 10 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct batch *first = batch_new(), *second = batch_new();
	unsigned char *data = calloc(MANY, ROW);
	int64_t shape = MANY * ROW;
	DLTensor t = bytes_tensor(data, &shape);
	tl_gather_out outs[2];

	must(data);
	for (int k = 0; k < BATCHES; k++) {
		char name[32];

		for (int i = 0; i < MANY; i++)
			memset(data + i * ROW, (i + k) % 251, ROW);
		snprintf(name, sizeof(name), "pack/%d", k);
		must_be(tl_put(client, name, &t, NULL, NULL), 0);
	}
	for (int i = 0; i < MANY; i++) {
		snprintf(first->text[i], sizeof(first->text[i]), "pack/%d", i % BATCHES);
		first->offsets[i] = (uint64_t)(MANY - 1 - i) * ROW;
		second->offsets[i] = (uint64_t)i * ROW + 1;
	}
	second->shape[1] = SECOND_ROW;
	outs[0] = (tl_gather_out){ &first->tensor, first->offsets };
	outs[1] = (tl_gather_out){ &second->tensor, second->offsets };
	must_be(tl_gather(client, first->names, MANY, outs, 2, NULL), 0);
	for (int i = 0; i < MANY; i++) {
		const unsigned char *row = second->data[0] + i * SECOND_ROW;

		must(row_is(first, i, (MANY - 1 - i + i % BATCHES) % 251, ROW));
		for (int n = 0; n < SECOND_ROW; n++)
			must_be(row[n], (i + i % BATCHES) % 251);
	}
	second->offsets[3] = (uint64_t)shape - SECOND_ROW + 1; /* beyond its end */
	must_be(tl_gather(client, first->names, MANY, outs, 2, NULL), -EINVAL);
	must(strstr(tl_last_error(), "'pack/3' has 64000 bytes: there are not 10 at offset 63991"));
	second->offsets[3] = UINT64_MAX;
	must_be(tl_gather(client, first->names, MANY, outs, 2, NULL), -EINVAL);
	free(data);
	free(first);
	free(second);
	tl_close(client);
}

TEST(all_or_nothing_is_copied)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct batch *b = batch_new();
	tl_gather_options o = { .size = sizeof(o), .timeout_ns = 20 * MS };

	for (int i = 0; i < MANY; i++) {
		snprintf(b->text[i], sizeof(b->text[i]), "sample/%d", i);
		if (i != MANY - 1)
			put_bytes(client, b->text[i], 1, ROW);
	}
	must_be(gather_rows(client, b), -ENOENT);
	must(strstr(tl_last_error(), "sample/63"));
	must_be(tl_gather(client, b->names, MANY, &b->out, 1, &o), -ETIMEDOUT);
	put_bytes(client, "sample/63", 1, ROW - 1);
	must_be(gather_rows(client, b), -EINVAL);
	must(strstr(tl_last_error(), "'sample/63' has "));
	must(strstr(tl_last_error(), " elements in dimension 0, and a row of the array has "));
	put_bytes(client, "sample/63", 1, ROW);
	b->shape[0] = MANY - 1;
	must_be(gather_rows(client, b), -EINVAL);
	must(strstr(tl_last_error(), "with 64 rows"));
	b->shape[0] = MANY;
	b->tensor.strides = (int64_t[]){ 1, MANY };
	must_be(gather_rows(client, b), -EINVAL);
	b->tensor.strides = NULL;
	b->tensor.dtype = (DLDataType){ TL_DTYPE_INT, 8, 1 };
	must_be(gather_rows(client, b), -EINVAL);
	for (int i = 0; i < MANY; i++)
		must(row_is(b, i, 0, ROW));
	b->tensor.dtype = U8;
	must_be(gather_rows(client, b), 0);
	must(row_is(b, MANY - 1, 1, ROW));
	td_sync(&d);
	must_be(leases_of(client, getpid()), 0);
	free(b);
	tl_close(client);
}

/* Rows whose sizes do not divide the blocks of bytes that each thread copies. */
TEST(several_threads_copy_what_one_does)
{
	enum { N = 5, SIZE = 3000001 };
	static const char *const names[N] = { "a", "b", "c", "b", "a" };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char *data = malloc((size_t)N * SIZE), *row = malloc(SIZE);
	int64_t shape[2] = { N, SIZE }, one = SIZE;
	DLTensor out = {
		.data = data, .device = { kDLCPU, 0 }, .ndim = 2, .dtype = U8, .shape = shape
	};
	DLTensor t = bytes_tensor(row, &one);

	must(data && row);
	for (int k = 0; k < 3; k++) {
		for (size_t i = 0; i < SIZE; i++)
			row[i] = (unsigned char)(i * 31 + i / 7919 + (size_t)k);
		must_be(tl_put(client, names[k], &t, NULL, NULL), 0);
	}
	for (uint32_t threads = 0; threads < 9; threads++) {
		const tl_gather_options o = { .size = sizeof(o), .threads = threads };

		memset(data, 0, (size_t)N * SIZE);
		must_be(tl_gather(client, names, N, &(tl_gather_out){ .tensor = &out }, 1, &o), 0);
		for (size_t n = 0; n < N; n++)
			for (size_t i = 0; i < SIZE; i++)
				must_be(data[n * SIZE + i],
					(unsigned char)(i * 31 + i / 7919 +
							(size_t)(names[n][0] - 'a')));
	}
	free(row);
	free(data);
	tl_close(client);
}

/* ---- as of one moment ------------------------------------------------------------------------ */

struct publisher {
	tl_client *client;
	struct batch *batch;
	_Atomic bool stop;
};

static void *publish_groups(void *arg)
{
	struct publisher *p = arg;
	tl_group_item items[MANY] = { 0 };
	tl_group *group;
	int64_t row = ROW;

	for (int value = 1; !atomic_load(&p->stop); value = value % 250 + 1) {
		for (int i = 0; i < MANY; i++)
			items[i] = (tl_group_item){
				.name = p->batch->names[i], .shape = &row, .ndim = 1, .dtype = U8
			};
		must_be(tl_group_create(p->client, items, MANY, NULL, &group), 0);
		for (size_t i = 0; i < MANY; i++)
			memset(tl_group_tensor(group, i)->data, value, ROW);
		must_be(tl_group_commit(group), 0);
	}
	return NULL;
}

TEST(what_was_published_together_is_gathered_together)
{
	cleanup_td struct test_daemon d = td_start();
	struct batch *b = batch_new();
	struct publisher p = { .client = td_connect(&d), .batch = b };
	const tl_gather_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	tl_client *client = td_connect(&d);
	pthread_t thread;

	for (int i = 0; i < MANY; i++)
		snprintf(b->text[i], sizeof(b->text[i]), "group/%d", i);
	must_be(pthread_create(&thread, NULL, publish_groups, &p), 0);
	for (int n = 0; n < 300; n++) {
		must_be(tl_gather(client, b->names, MANY, &b->out, 1, &o), 0);
		for (int i = 0; i < MANY; i++)
			must(row_is(b, i, b->data[0][0], ROW));
	}
	atomic_store(&p.stop, true);
	must_be(pthread_join(thread, NULL), 0);
	tl_close(p.client);
	tl_close(client);
	free(b);
}

int main(void)
{
	return suite_run();
}
