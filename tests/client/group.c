/* SPDX-License-Identifier: Apache-2.0 */
/* Groups are published in one step, got as of one moment, and given back as a whole. */
#include <tensorlease/cuda.h>

#include "tests/client/common.h"

enum { MANY = 500, DRAFTS = 1024 };

struct named {
	char names[MANY][32];
	int64_t shapes[MANY][1];
	tl_group_item items[MANY];
	const char *list[MANY];
};

static void name_items(struct named *n, const char *prefix, size_t count, int64_t nbytes)
{
	for (size_t i = 0; i < count; i++) {
		snprintf(n->names[i], sizeof(n->names[i]), "%s/%zu", prefix, i);
		n->shapes[i][0] = nbytes;
		n->list[i] = n->names[i];
		n->items[i] = (tl_group_item){
			.name = n->names[i], .shape = n->shapes[i], .ndim = 1, .dtype = U8
		};
	}
}

static int publish(tl_client *client, const struct named *n, size_t count, unsigned value)
{
	tl_group *group;
	int r = tl_group_create(client, n->items, count, NULL, &group);

	if (r)
		return r;
	for (size_t i = 0; i < count; i++) {
		DLTensor *t = tl_group_tensor(group, i);

		must_be((uintptr_t)t->data % TL_ALIGNMENT, 0);
		memset(t->data, (int)value, (size_t)t->shape[0]);
		if (value > 255)
			memcpy(t->data, &value, sizeof(value));
	}
	must(!tl_group_tensor(group, count));
	return tl_group_commit(group);
}

static void drop_all(DLManagedTensorVersioned **tensors, size_t count)
{
	for (size_t i = 0; i < count; i++)
		drop(tensors[i]);
}

TEST(a_group_of_500_comes_and_goes_in_one_segment)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *got[MANY];
	static struct named n;
	struct tl_status s;

	name_items(&n, "model/layer", MANY, 5000);
	must_be(publish(client, &n, MANY, 7), 0);
	s = td_status(&d);
	must_be(s.tensors, MANY);
	must_be(s.segments, 1);
	must_be(s.drafts, 0);
	must(s.bytes_used <= MANY * 5120 + 4096);
	must_be(tl_get_many(client, n.list, MANY, NULL, got), 0);
	for (size_t i = 0; i < MANY; i++)
		must(all_bytes(got[i], 7, 5000));

	must_be(publish(client, &n, MANY, 8), 0); /* replaced as a whole */
	must(all_bytes(got[3], 7, 5000));
	must_be(td_status(&d).retired, MANY);
	drop_all(got, MANY);
	td_sync(&d);
	must_be(td_status(&d).retired, 0);
	must_be(tl_get_many(client, n.list, MANY, NULL, got), 0);
	must(all_bytes(got[MANY - 1], 8, 5000));
	drop_all(got, MANY);
	for (size_t i = 0; i < MANY; i++)
		must_be(tl_delete(client, n.names[i]), 0);
	td_sync(&d);
	s = td_status(&d);
	must_be(s.tensors, 0);
	must_be(s.bytes_used, s.bytes_warm);
	tl_close(client);
}

TEST(members_may_differ_in_everything)
{
	static const int64_t deep[6] = { 2, 1, 3, 1, 2, 1 };
	static unsigned char meta[TL_METADATA_MAX];
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const tl_group_item items[4] = {
		{ .name = "g/scalar", .dtype = { TL_DTYPE_FLOAT, 64, 1 } },
		{ .name = "g/empty", .shape = (const int64_t[]){ 0, 3 }, .ndim = 2, .dtype = U8 },
		{ .name = "g/deep",
		  .shape = deep,
		  .ndim = 6,
		  .dtype = { TL_DTYPE_INT, 4, 1 },
		  .metadata = meta,
		  .metadata_size = sizeof(meta) },
		{ .name = "g/padded",
		  .shape = deep,
		  .ndim = 6,
		  .dtype = { TL_DTYPE_INT, 4, 1 },
		  .dlpack_flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED },
	};
	const char *names[4] = { "g/padded", "g/deep", "g/empty", "g/scalar" };
	DLManagedTensorVersioned *got[4];
	static tl_info info = { .size = sizeof(info) };
	tl_group *group;

	memset(meta, 'm', sizeof(meta));
	must_be(tl_group_create(client, items, 4, NULL, &group), 0);
	must(!tl_group_tensor(group, 1)->data);
	*(double *)tl_group_tensor(group, 0)->data = 2.5;
	must_be(tl_group_commit(group), 0);
	must_be(tl_get_many(client, names, 4, NULL, got), 0);
	must(*(double *)got[3]->dl_tensor.data == 2.5);
	must(!got[2]->dl_tensor.data);
	must_be(tl_tensor_info(got[1], &info), 0);
	must_be(info.metadata_size, sizeof(meta));
	must(!memcmp(info.metadata, meta, sizeof(meta)));
	must_be(info.nbytes, 6);
	must_be(info.shape[2], 3);
	must_be(tl_tensor_info(got[0], &info), 0);
	must_be(info.nbytes, 12);
	drop_all(got, 4);
	tl_close(client);
}

/* Who gets it maps nothing, so that it is no holder of the group's memory. */
TEST(an_empty_member_is_held_by_who_maps_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	const tl_group_item items[2] = {
		{ .name = "g/full", .dtype = { TL_DTYPE_FLOAT, 64, 1 } },
		{ .name = "g/empty", .shape = (const int64_t[]){ 0, 3 }, .ndim = 2, .dtype = U8 },
	};
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;
	tl_group *group;

	must_be(tl_group_create(client, items, 2, NULL, &group), 0);
	must_be(tl_group_commit(group), 0);
	t = get(other, "g/empty");
	must_be(tl_delete(client, "g/empty"), 0);
	must_be(td_status(&d).retired, 1);
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.shape[1], 3);
	drop(t);
	td_sync(&d);
	must_be(td_status(&d).retired, 0);
	tl_close(other);
	tl_close(client);
}

TEST(a_mistake_in_one_member_publishes_none)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 << 20);
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *got[2] = { NULL, NULL };
	const char *names[2] = { "a/0", "missing" };
	static struct named n;
	tl_group *group;

	name_items(&n, "a", 3, 1000);
	n.items[2].name = "a/1";
	must_be(tl_group_create(client, n.items, 3, NULL, &group), -EINVAL); /* the same name twice
									      */
	n.items[2].name = "a//2";
	must_be(tl_group_create(client, n.items, 3, NULL, &group), -EINVAL);
	n.items[2].name = "a/2";
	n.items[2].dtype.lanes = 0;
	must_be(tl_group_create(client, n.items, 3, NULL, &group), -EINVAL);
	n.items[2].dtype.lanes = 1;
	must_be(tl_group_create(client, n.items, 0, NULL, &group), -EINVAL);
	n.shapes[1][0] = 64 << 20;
	must_be(tl_group_create(client, n.items, 3, NULL, &group), -ENOSPC);
	n.shapes[1][0] = 1000;
	must_be(tl_group_create(client, n.items, 3, NULL, &group), 0);
	tl_group_abort(group);
	td_sync(&d);
	must_be(td_status(&d).tensors, 0);
	must_be(td_status(&d).drafts, 0);

	must_be(publish(client, &n, 3, 1), 0);
	must_be(tl_get_many(client, names, 2, NULL, got), -ENOENT);
	must(!got[0] && !got[1]);
	must(strstr(tl_last_error(), "missing"));
	must_be(tl_get_many(client, names, 0, NULL, got), 0);
	tl_close(client);
}

struct race {
	const struct test_daemon *d;
	const struct named *n;
	_Atomic bool stop;
	_Atomic unsigned mixed, seen;
};

enum { RACED = 160, FIRST_ROUND = 1000 }; /* it takes several turns of the daemon */

static unsigned round_of(const DLManagedTensorVersioned *t)
{
	unsigned value;

	memcpy(&value, t->dl_tensor.data, sizeof(value));
	return value;
}

/* Gets the group as a whole, and its members one by one from the first to the last and back. */
static void *look_on(void *arg)
{
	struct race *race = arg;
	tl_client *client = td_connect(race->d);
	DLManagedTensorVersioned *got[RACED];

	while (!atomic_load(&race->stop)) {
		unsigned first, last = 0;

		must_be(tl_get_many(client, race->n->list, RACED, NULL, got), 0);
		first = round_of(got[0]);
		for (int i = 0; i < RACED; i++)
			atomic_fetch_add(&race->mixed, round_of(got[i]) != first);
		drop_all(got, RACED);
		atomic_fetch_add(&race->seen, 1);

		for (int i = 0; i < 2 * RACED; i++) { /* versions never go back */
			int which = i < RACED ? i : 2 * RACED - 1 - i;
			DLManagedTensorVersioned *t = get(client, race->n->list[which]);
			unsigned value = round_of(t);

			atomic_fetch_add(&race->mixed, value < last);
			last = value;
			drop(t);
		}
	}
	tl_close(client);
	return NULL;
}

TEST(nobody_sees_half_a_group)
{
	cleanup_td struct test_daemon d = td_start();
	static struct named n;
	struct race race = { .d = &d, .n = &n };
	tl_client *client = td_connect(&d);
	pthread_t threads[2];

	name_items(&n, "r", RACED, 64);
	must_be(publish(client, &n, RACED, FIRST_ROUND), 0);
	for (int i = 0; i < 2; i++)
		must_be(pthread_create(&threads[i], NULL, look_on, &race), 0);
	for (unsigned round = 1; round < 2000 || atomic_load(&race.seen) < 200; round++)
		must_be(publish(client, &n, RACED, FIRST_ROUND + round), 0);
	atomic_store(&race.stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	print_message("%u looks at the whole group\n", race.seen);
	must_be(race.mixed, 0);
	td_sync(&d);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).tensors, RACED);
	tl_close(client);
}

static int commit_nothing_and_die(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_group *group;

	must_be(tl_group_create(client, ((struct named *)arg)->items, 100, NULL, &group), 0);
	kill(getpid(), SIGKILL);
	return 0;
}

TEST(a_dead_producers_group_leaves_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	static struct named n;
	struct tl_status s;

	name_items(&n, "dead", 100, 100000);
	must(WIFSIGNALED(td_run_client(&d, commit_nothing_and_die, &n)));
	td_sync(&d);
	s = td_status(&d);
	must_be(s.drafts, 0);
	must_be(s.tensors, 0);
	must_be(s.bytes_used, s.bytes_warm);
}

static int commits_its_parents(const struct test_daemon *d, void *arg)
{
	(void)d;
	parent_await();
	must_be(tl_group_commit(arg), -ESTALE);
	must(strstr(tl_last_error(), "the group belongs to the process that created it"));
	return 0;
}

TEST(errors_about_a_groups_memory_say_that_it_is_a_group)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static struct named n;
	struct test_child c;
	tl_group *group;

	name_items(&n, "forked", 10, 300);
	must_be(tl_group_create(client, n.items, 10, NULL, &group), 0);
	c = child_start(&d, commits_its_parents, group);
	child_finish(&c);
	tl_group_abort(group);
	tl_close(client);
}

TEST(too_many_drafts_are_no_lack_of_bytes)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static tl_draft *drafts[DRAFTS];
	const tl_spec spec = { .size = sizeof(spec), .dtype = U8 };
	tl_draft *more;

	for (size_t i = 0; i < DRAFTS; i++)
		must_be(tl_create(client, "d", &spec, &drafts[i]), 0);
	must_be(tl_create(client, "d", &spec, &more), -ENOSPC);
	must(strstr(tl_last_error(), "maximum of 1024 drafts"));
	must_be(tl_last_cause(NULL), TL_CAUSE_TENSORS);
	for (size_t i = 0; i < DRAFTS; i++)
		tl_abort(drafts[i]);
	tl_close(client);
}

TEST(a_waiting_get_of_many_gets_them_when_they_come)
{
	const tl_get_options wait = { .size = sizeof(wait), .timeout_ns = WAIT_S * SECOND };
	tl_get_options brief = { .size = sizeof(brief), .timeout_ns = 20 * MS };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *got[10];
	static struct named n;
	pid_t pid;

	name_items(&n, "later", 10, 300);
	must_be(tl_get_many(client, n.list, 10, &brief, got), -ETIMEDOUT);
	brief.timeout_ns = 1; /* over before it waits */
	must_be(tl_get_many(client, n.list, 10, &brief, got), -ETIMEDOUT);
	pid = fork();
	if (pid == 0) {
		tl_client *own = td_connect(&d);
		int r = publish(own, &n, 10, 3);

		tl_close(own);
		_exit(r ? 1 : 0);
	}
	must_be(tl_get_many(client, n.list, 10, &wait, got), 0);
	must(all_bytes(got[9], 3, 300));
	drop_all(got, 10);
	must_be(waitpid(pid, NULL, 0), pid);
	tl_close(client);
}

TEST(copies_of_many_are_put_in_one_step)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static unsigned char bytes[300][64];
	static int64_t shapes[300][2], strides[2] = { 1, 8 };
	const char *const none[1] = { NULL };
	DLManagedTensorVersioned *got[300];
	const DLTensor *sources[300];
	static DLTensor tensors[300];
	static struct named n;
	struct tl_status s;

	name_items(&n, "copy", 300, 1);
	for (int i = 0; i < 300; i++) {
		for (int k = 0; k < 64; k++)
			bytes[i][k] = (unsigned char)(i + k);
		shapes[i][0] = shapes[i][1] = i == 7 ? 0 : 8;
		tensors[i] = bytes_tensor(bytes[i], shapes[i]);
		tensors[i].ndim = 2;
		tensors[i].strides = i == 5 ? strides : NULL; /* transposed */
		sources[i] = &tensors[i];
	}
	must_be(tl_put_many(client, n.list, sources, 300, NULL), 0);
	must_be(tl_get_many(client, n.list, 300, NULL, got), 0);
	for (int i = 0; i < 300; i++)
		for (int k = 0; k < 64 && i != 7; k++) {
			const unsigned char *data = got[i]->dl_tensor.data;
			int from = i == 5 ? k % 8 * 8 + k / 8 : k;

			must_be(data[k], bytes[i][from]);
		}
	must(!got[7]->dl_tensor.data);
	drop_all(got, 300);

	s = td_status(&d);
	tensors[299].device.device_type = kDLOpenCL;
	must_be(tl_put_many(client, n.list, sources, 300, NULL), -ENOTSUP);
	must(strstr(tl_last_error(), n.list[299]));
	must_be(tl_put_many(client, none, sources, 1, NULL), -EINVAL);
	must_be(tl_put_many(client, n.list, sources, 0, NULL), -EINVAL);
	must_be(tl_put_many(client, n.list, sources, 65537, NULL), -EINVAL);
	must_be(td_status(&d).bytes_used, s.bytes_used);
	must_be(td_status(&d).drafts, 0);
	tl_close(client);
}

TEST(a_source_that_does_not_fit_its_tensor_is_not_copied)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static unsigned char bytes[4][64];
	int64_t shape[2] = { 64, 1 }, wide[1] = { 128 }, huge[1] = { INT64_MAX / 2 };
	const tl_group_item items[3] = {
		{ .name = "fit/a", .shape = shape, .ndim = 1, .dtype = U8 },
		{ .name = "fit/b", .shape = shape, .ndim = 1, .dtype = U8 },
		{ .name = "fit/c", .flags = TL_GROUP_DELETE },
	};
	const DLTensor first = bytes_tensor(memset(bytes[0], 1, 64), shape);
	const DLTensor good = bytes_tensor(bytes[1], shape);
	const struct {
		DLTensor source;
		int error;
		const char *text;
	} bad[] = {
		{ bytes_tensor(bytes[1], wide), -EINVAL, "'fit/b' has shape[0] 128 instead of 64" },
		{ bytes_tensor(bytes[1], huge), -EINVAL, "'fit/b'" },
		{ bytes_tensor(NULL, shape), -EINVAL, "'fit/b': data is NULL" },
		{ { bytes[1], { kDLCPU, 0 }, 2, U8, shape, NULL, 0 },
		  -EINVAL,
		  "'fit/b' has ndim 2 instead of 1" },
		{ { bytes[1], { kDLCPU, 0 }, 1, { kDLInt, 16, 1 }, shape, NULL, 0 },
		  -EINVAL,
		  "'fit/b' has type int16 instead of uint8" },
		{ { bytes[1], { kDLCUDA, 3 }, 1, U8, shape, NULL, 0 },
		  -EINVAL,
		  "'fit/b' is on device 2:3 instead of 1:0" },
		{ { bytes[1], { kDLOpenCL, 0 }, 1, U8, shape, NULL, 0 }, -ENOTSUP, "'fit/b'" },
	};
	const DLTensor *sources[3] = { &first };
	tl_group *group;
	const unsigned char *data;

	must_be(tl_group_create(client, items, 3, NULL, &group), 0);
	data = tl_group_tensor(group, 0)->data;
	memset(tl_group_tensor(group, 0)->data, 9, 64);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		sources[1] = &bad[i].source;
		must_be(tl_group_copy(group, sources), bad[i].error);
		must(strstr(tl_last_error(), bad[i].text));
		must_be(data[0], 9); /* not even what fits */
	}
	sources[1] = &good;
	sources[2] = &good;
	must_be(tl_group_copy(group, sources), -EINVAL);
	must(strstr(tl_last_error(), "'fit/c'"));
	must_be(data[0], 9);
	sources[2] = NULL;
	must_be(tl_group_copy(group, sources), 0);
	must_be(data[0], 1);
	tl_group_abort(group);
	tl_close(client);
}

/* ---- Names that are published one by one ---- */

struct pair {
	tl_client *client;
	const char *first, *second;
	_Atomic bool stop;
	_Atomic unsigned rounds;
};

static void put_number(tl_client *client, const char *name, unsigned number)
{
	int64_t shape[1] = { sizeof(number) };
	DLTensor t = bytes_tensor(&number, shape);

	must_be(tl_put(client, name, &t, NULL, NULL), 0);
}

static void *put_first_then_second(void *arg)
{
	struct pair *p = arg;

	for (unsigned n = 1; !atomic_load(&p->stop); n++) {
		put_number(p->client, p->first, n);
		put_number(p->client, p->second, n);
		atomic_store(&p->rounds, n);
	}
	return NULL;
}

/*
 * The get reads the first name at its start and the second one much later, when both have been
 * replaced.
 */
TEST(what_is_got_together_was_there_together)
{
	cleanup_td struct test_daemon d = td_start();
	static struct named n;
	struct pair pair = { .client = td_connect(&d) };
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *got[MANY];
	pthread_t thread;

	name_items(&n, "t", MANY, 64);
	must_be(publish(client, &n, MANY, 0), 0);
	pair.first = n.list[0];
	pair.second = n.list[MANY - 1];
	put_number(client, pair.first, 0);
	put_number(client, pair.second, 0);
	must_be(pthread_create(&thread, NULL, put_first_then_second, &pair), 0);
	for (unsigned i = 0; i < 2000 || atomic_load(&pair.rounds) < 2000; i++) {
		unsigned first, second;

		must_be(tl_get_many(client, n.list, MANY, NULL, got), 0);
		first = round_of(got[0]);
		second = round_of(got[MANY - 1]);
		must(second == first || second + 1 == first);
		drop_all(got, MANY);
	}
	atomic_store(&pair.stop, true);
	pthread_join(thread, NULL);
	must_be(leases_of(client, getpid()), 0);
	tl_close(pair.client);
	tl_close(client);
}

/* ---- Names that a group deletes ---- */

enum { SWAPS = 400 };

/* "swap/a" and "swap/b" take turns: in each group one is published and the other deleted. */
static int swapper(const struct test_daemon *d, void *arg)
{
	static const int64_t shape[1] = { 4 };
	tl_client *client = td_connect(d);

	(void)arg;
	put_bytes(client, "swap/b", 1, 4);
	pause_at(1);
	for (int i = 0; i < SWAPS; i++) {
		tl_group_item items[2] = {
			{ .name = i % 2 ? "swap/b" : "swap/a",
			  .shape = shape,
			  .ndim = 1,
			  .dtype = U8 },
			{ .name = i % 2 ? "swap/a" : "swap/b", .flags = TL_GROUP_DELETE },
		};
		tl_group *group;

		must_be(tl_group_create(client, items, 2, NULL, &group), 0);
		memset(tl_group_tensor(group, 0)->data, 2, 4);
		must(!tl_group_tensor(group, 1));
		must_be(tl_group_commit(group), 0);
	}
	pause_at(2);
	tl_close(client);
	return 0;
}

static int count_swap(const tl_info *info, void *context)
{
	(void)info;
	++*(int *)context;
	return 0;
}

TEST(a_name_that_a_group_deletes_goes_when_the_others_come)
{
	cleanup_td struct test_daemon d = td_start();
	static const char *const both[2] = { "swap/a", "swap/b" };
	tl_client *client = td_connect(&d);
	struct test_child c = child_start_ready(&d, swapper, NULL);
	DLManagedTensorVersioned *got[2];
	tl_info info = { .size = sizeof(info) };
	int n = 0;

	child_go(&c);
	for (int i = 0; i < 20000; i++) {
		int r = tl_get_many(client, both, 2, NULL, got);

		must_be(r, -ENOENT); /* there is no moment at which both are there */
	}
	must_be(child_await(&c), 2);
	must_be(tl_list(client, "swap/", count_swap, &n), 0);
	must_be(n, 1);
	must_be(tl_stat(client, "swap/a", &info), -ENOENT);
	must_be(tl_stat(client, "swap/b", &info), 0);
	must_be(td_status(&d).tensors, 1);
	must_be(tl_delete(client, "swap/b"), 0);
	child_finish(&c);
	tl_close(client);
	td_must_be_empty(&d);
}

TEST(what_a_group_deletes_has_nothing_but_a_name)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_group_item item = { .name = "x", .flags = TL_GROUP_DELETE };
	tl_group *group;

	must_be(tl_group_create(client, &item, 1, NULL, &group), 0);
	must_be(tl_group_commit(group), 0); /* it was not there, which is fine */
	item.dtype = U8;
	must_be(tl_group_create(client, &item, 1, NULL, &group), -EINVAL);
	must(strstr(tl_last_error(), "'x'") && strstr(tl_last_error(), "TL_GROUP_DELETE"));
	item = (tl_group_item){ .name = "x", .flags = 2, .dtype = U8 };
	must_be(tl_group_create(client, &item, 1, NULL, &group), -EINVAL);
	tl_close(client);
	td_must_be_empty(&d);
}

int main(void)
{
	return suite_run();
}
