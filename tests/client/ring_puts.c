/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small tensors are copied into a ring and published in one step, others in two: nobody sees which.
 */
#include "tests/client/common.h"

enum { STEP = 16 << 10, PUTS = 8 }; /* the largest copy of one step; puts of each kind */

static uint64_t version_of(tl_client *client)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, "r", &info), 0);
	return info.version;
}

/* What a consumer has to see: @n bytes, each of which lies at @offset + i * @stride in the
 * producer's. */
struct seen {
	size_t n, offset, stride;
	bool ring;
};

/* Puts @t, which lies in @data of @size bytes, again and again, with other bytes each time. */
static void put_and_look(const DLTensor *t, const tl_put_options *o, unsigned char *data,
			 size_t size, struct seen seen)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	tl_info info = { .size = sizeof(info) };

	for (int i = 1; i <= PUTS; i++) {
		DLManagedTensorVersioned *got;
		uint64_t version = 0;

		for (size_t at = 0; at < size; at++)
			data[at] = (unsigned char)(at * 7 + (size_t)i);
		must_be(tl_put(producer, "r", t, o, &version), 0);
		must_be(version, i);
		got = get(consumer, "r");
		for (size_t at = 0; at < seen.n; at++)
			must_be(((unsigned char *)got->dl_tensor.data)[at],
				data[seen.offset + at * seen.stride]);
		must_be(tl_tensor_info(got, &info), 0);
		must_be(info.version, i);
		must_be(info.metadata_size, o->metadata_size);
		must(!o->metadata_size || !memcmp(info.metadata, o->metadata, o->metadata_size));
		drop(got);
	}
	must_be(info.ring != 0, seen.ring);
	tl_close(producer);
	tl_close(consumer);
}

static const tl_put_options plain = { .size = sizeof(plain) };

TEST(sizes_about_that_of_one_step)
{
	static unsigned char data[STEP + 1];

	for (int64_t n = STEP - 1; n <= STEP + 1; n++) {
		DLTensor t = bytes_tensor(data, &n);

		put_and_look(&t, &plain, data, (size_t)n,
			     (struct seen){ .n = (size_t)n, .stride = 1, .ring = true });
	}
}

TEST(sources_that_begin_later_or_have_strides)
{
	unsigned char data[4096];
	int64_t shape[2] = { 1, 1000 }, contiguous[2] = { -3, 1 }, every_second[2] = { 1, 2 };
	DLTensor t = bytes_tensor(data, shape);

	t.ndim = 2;
	t.byte_offset = 100;
	put_and_look(&t, &plain, data, sizeof(data),
		     (struct seen){ .n = 1000, .offset = 100, .stride = 1, .ring = true });
	t.strides = contiguous; /* that of one element leads nowhere */
	put_and_look(&t, &plain, data, sizeof(data),
		     (struct seen){ .n = 1000, .offset = 100, .stride = 1, .ring = true });
	t.strides = every_second;
	put_and_look(&t, &plain, data, sizeof(data),
		     (struct seen){ .n = 1000, .offset = 100, .stride = 2, .ring = true });
}

TEST(a_scalar_and_elements_of_more_than_a_byte)
{
	unsigned char data[64];
	int64_t shape = 4;
	DLTensor t = bytes_tensor(data, NULL);

	t.ndim = 0;
	t.dtype = (DLDataType){ kDLFloat, 64, 1 };
	put_and_look(&t, &plain, data, 8, (struct seen){ .n = 8, .stride = 1, .ring = true });
	t.ndim = 1;
	t.shape = &shape;
	t.dtype = (DLDataType){ kDLFloat, 32, 4 };
	put_and_look(&t, &plain, data, 64, (struct seen){ .n = 64, .stride = 1, .ring = true });
}

/* The bits beyond the last element are 0, whatever they are in the source. */
TEST(packed_elements)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char data[2] = { 0xab, 0xcd };
	int64_t shape = 3;
	DLTensor t = bytes_tensor(data, &shape);

	t.dtype = (DLDataType){ kDLUInt, 4, 1 };
	for (int i = 0; i < PUTS; i++) {
		DLManagedTensorVersioned *got;
		uint64_t version;

		must_be(tl_put(client, "r", &t, &plain, &version), 0);
		got = get(client, "r");
		must(!memcmp(got->dl_tensor.data, "\xab\x0d", 2));
		drop(got);
	}
	tl_close(client);
}

TEST(metadata_that_fits_a_slot_and_that_does_not)
{
	static unsigned char data[100], metadata[TL_METADATA_MAX];
	int64_t shape = sizeof(data);
	DLTensor t = bytes_tensor(data, &shape);

	for (size_t i = 0; i < sizeof(metadata); i++)
		metadata[i] = (unsigned char)(i + 1);
	for (size_t n = 23; n <= 25; n++) {
		const tl_put_options o = { .size = sizeof(o),
					   .metadata = metadata,
					   .metadata_size = n };

		put_and_look(&t, &o, data, sizeof(data),
			     (struct seen){ .n = sizeof(data), .stride = 1, .ring = n <= 24 });
	}
}

static uint32_t ring_of(tl_client *client)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, "r", &info), 0);
	return info.ring;
}

static tl_draft *draft_like(tl_client *client, const char *name, const DLTensor *t)
{
	const tl_spec spec = {
		.size = sizeof(spec), .shape = t->shape, .ndim = t->ndim, .dtype = t->dtype
	};
	tl_draft *draft;

	must_be(tl_create(client, name, &spec, &draft), 0);
	return draft;
}

/* One that is put may take round trips, and one that is committed without a version may not. */
TEST(a_commit_that_asks_for_no_version_begins_a_ring)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static const int64_t shape = 100;
	unsigned char data[100] = { 0 };
	DLTensor t = bytes_tensor(data, &shape);
	int64_t start;

	do {
		start = now_ns();
		for (int i = 0; i < 3; i++)
			must_be(tl_commit(draft_like(client, "r", &t), NULL), 0);
	} while (!ring_of(client) && puts_were_slow(start));
	must(ring_of(client));
	tl_close(client);
}

static void begin_ring(tl_client *client, const DLTensor *t)
{
	int64_t start;

	do {
		start = now_ns();
		for (int i = 0; i < 3; i++)
			must_be(tl_put(client, "r", t, &plain, NULL), 0);
	} while (!ring_of(client) && puts_were_slow(start));
	must(ring_of(client));
}

/* Whoever finds what was put in a ring finds what the same thread committed before. */
TEST(a_put_in_a_ring_does_not_overtake_a_commit)
{
	enum { ROUNDS = 500 };
	static unsigned char data[STEP + 1];
	static const int64_t sizes[] = { 100, sizeof(data) };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *consumer = td_connect(&d);
	const tl_put_options ringless = { .size = sizeof(ringless), .ring = TL_RING_NONE };
	tl_info info = { .size = sizeof(info) };
	uint64_t committed = 0;

	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		DLTensor t = bytes_tensor(data, &sizes[k]);

		begin_ring(client, &t);
		for (int i = 0; i < ROUNDS; i++) {
			tl_draft *older = i % 2 ? draft_like(client, "r", &t) : NULL;
			uint64_t version = version_of(consumer);

			must_be(tl_put(client, "other", &t, &ringless, NULL), 0);
			if (older)
				must_be(tl_commit(older, NULL), 0);
			else
				must_be(tl_put(client, "r", &t, &plain, NULL), 0);
			must_be(version_of(consumer), version + 1);
			must_be(tl_stat(consumer, "other", &info), 0);
			must_be(info.version, ++committed);
		}
		must(ring_of(client));
	}
	tl_close(consumer);
	tl_close(client);
}

struct late {
	tl_client *client;
	DLManagedTensorVersioned *source;
	tl_group *group; /* of one tensor, "r" */
};

static int delete_it(struct late *late)
{
	return tl_delete(late->client, "r");
}

static int link_it(struct late *late)
{
	return tl_publish(late->client, "r", late->source, NULL, NULL, NULL);
}

static int commit_group(struct late *late)
{
	tl_group *group = late->group;

	late->group = NULL;
	return tl_group_commit(group);
}

static void late_begin(struct late *late, const DLTensor *like)
{
	const tl_group_item item = {
		.name = "r", .shape = like->shape, .ndim = like->ndim, .dtype = like->dtype
	};

	must_be(tl_group_create(late->client, &item, 1, NULL, &late->group), 0);
	client_set_timeout(late->client, 50 * MS);
}

static void late_end(struct late *late)
{
	client_set_timeout(late->client, WAIT_S * SECOND);
	if (late->group)
		tl_group_abort(late->group);
}

static int first_byte(tl_client *client)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 0 };
	DLManagedTensorVersioned *t;
	int value, r = tl_get(client, "r", &o, &t);

	if (r)
		return r;
	value = *(const unsigned char *)t->dl_tensor.data;
	t->deleter(t);
	return value;
}

/* The daemon reads the request later than the put, and must not undo the put by it. */
TEST(a_put_in_a_ring_does_not_overtake_a_request_that_timed_out)
{
	static int (*const requests[])(struct late *) = { delete_it, link_it, commit_group };
	cleanup_td struct test_daemon d = td_start();
	struct late late = { .client = td_connect(&d) };
	tl_client *consumer = td_connect(&d), *client = late.client;
	static const int64_t shape = 100;
	unsigned char data[100] = { 7 };
	DLTensor t = bytes_tensor(data, &shape);
	const tl_get_options now = { .size = sizeof(now) };
	uint64_t version;

	must_be(tl_put(client, "source", &t, &plain, &version), 0);
	must_be(tl_get(client, "source", &now, &late.source), 0);
	for (size_t k = 0; k < sizeof(requests) / sizeof(*requests); k++) {
		data[0] = 8;
		do {
			must_be(tl_put(client, "r", &t, &plain, &version), 0);
		} while (!ring_of(client));
		data[0] = 9;
		late_begin(&late, &t);
		td_freeze(&d);
		must_be(requests[k](&late), -ETIMEDOUT);
		must_be(tl_put(client, "r", &t, &plain, NULL), -ETIMEDOUT);
		td_thaw(&d);
		late_end(&late);
		must_be(tl_put(client, "r", &t, &plain, NULL), 0);
		must_be(tl_put(client, "other", &t, &plain, &version), 0);
		must_be(first_byte(consumer), 9);
	}
	late.source->deleter(late.source);
	tl_close(client);
	tl_close(consumer);
}

TEST(a_bad_source_is_refused_where_its_name_has_a_ring)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char data[256] = { 0 };
	int64_t shape = sizeof(data), negative = -1;
	const DLTensor good = bytes_tensor(data, &shape);
	const tl_put_options lifetime = { .size = sizeof(lifetime), .lifetime = 0x80 };
	DLTensor bad[6];
	uint64_t version;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		bad[i] = good;
	bad[0].shape = NULL;
	bad[1].shape = &negative;
	bad[2].data = NULL;
	bad[3].byte_offset = UINT64_MAX - 100;
	bad[4].device.device_type = (DLDeviceType)99;
	bad[5].ndim = -1;
	for (int i = 0; i < PUTS; i++)
		must_be(tl_put(client, "r", &good, NULL, &version), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		must(tl_put(client, "r", &bad[i], NULL, &version) < 0);
		must(strlen(tl_last_error()) > 10);
	}
	bad[3].byte_offset = UINTPTR_MAX - (uintptr_t)data - 10; /* its end wraps around */
	must_be(tl_put(client, "r", &bad[3], NULL, &version), -EINVAL);
	must_be(tl_put(client, "r", &good, &lifetime, &version), -EINVAL);
	must_be(tl_put(client, "r\xff", &good, NULL, &version), -EINVAL);
	must_be(version_of(client), PUTS);
	must_be(tl_put(client, "r", &good, NULL, &version), 0);
	must_be(version, PUTS + 1);
	tl_close(client);
}

/* ---- threads ---- */

enum { THREADS = 4, EACH = 3000, SMALL = 512 };

struct many {
	tl_client *client;
	_Atomic unsigned char *seen; /* by version */
	int value;
};

static void *put_many(void *arg)
{
	const struct many *m = arg;
	unsigned char data[SMALL];
	int64_t shape = SMALL;
	DLTensor t = bytes_tensor(data, &shape);
	uint64_t before = 0;

	memset(data, m->value, sizeof(data));
	for (int i = 0; i < EACH; i++) {
		uint64_t version;

		must_be(tl_put(m->client, "r", &t, &plain, &version), 0);
		must(version > before && version <= THREADS * EACH);
		must_be(atomic_fetch_add(&m->seen[version], 1), 0);
		before = version;
	}
	return NULL;
}

/* Each version is one thread's, and a tensor is never of two. */
TEST(threads_publish_under_one_name)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *consumer = td_connect(&d);
	_Atomic unsigned char *seen = calloc(THREADS * EACH + 1, 1);
	struct many many[THREADS];
	pthread_t threads[THREADS];
	uint64_t version = 0, newer;

	must(seen);
	for (int i = 0; i < THREADS; i++) {
		many[i] = (struct many){ .client = client, .seen = seen, .value = i + 1 };
		must_be(pthread_create(&threads[i], NULL, put_many, &many[i]), 0);
	}
	while (version < THREADS * EACH) {
		const tl_get_options o = { .size = sizeof(o),
					   .newer_than = version,
					   .timeout_ns = -1 };
		DLManagedTensorVersioned *got;
		int value;

		must_be(tl_get(consumer, "r", &o, &got), 0);
		must_be(tl_tensor_version(got, &newer), 0);
		must(newer > version);
		version = newer;
		value = *(unsigned char *)got->dl_tensor.data;
		must(value >= 1 && value <= THREADS && all_bytes(got, value, SMALL));
		drop(got);
	}
	for (int i = 0; i < THREADS; i++)
		must_be(pthread_join(threads[i], NULL), 0);
	free(seen);
	tl_close(client);
	tl_close(consumer);
}

static bool has_ring_after_put(tl_client *client, uint32_t slots)
{
	const tl_put_options o = { .size = sizeof(o), .ring = slots };
	tl_status status = { .size = sizeof(status) };
	static unsigned char data[4096];
	int64_t shape[1] = { sizeof(data) };
	DLTensor t = bytes_tensor(data, shape);
	uint64_t version;

	must_be(tl_put(client, "r", &t, &o, &version), 0);
	must_be(tl_get_status(client, &status), 0);
	return status.rings;
}

TEST(who_asks_for_slots_has_a_ring_once_there_is_space)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 2 * MIB);
	tl_client *producer = td_connect(&d), *other = td_connect(&d);

	must_be(put_bytes(other, "large", 1, (size_t)(2 * MIB - 512 * KIB)), 1);
	for (int i = 0; i < 10; i++)
		must(!has_ring_after_put(producer, 64));
	must_be(tl_delete(other, "large"), 0);
	must_be(put_bytes(other, "large", 1, (size_t)(512 * KIB)), 2);
	eventually(has_ring_after_put(producer, 64));
	tl_close(producer);
	tl_close(other);
}

int main(void)
{
	return suite_run();
}
