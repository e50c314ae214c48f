/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of tensors on GPUs, and of such with others: published in one step, got as of one moment.
 */
#include "client/publish/group.h"
#include "tests/gpu/common.h"
#include "tests/gpu/exports.h"
#include "tests/harness/process.h"

enum { N = 64 << 10, MANY = 60 };

static const char *const no_warm[] = { "--warm-time", "0", NULL };
static char names[MANY][16];
static const char *name_list[MANY];

static void make_names(void)
{
	for (int i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof(names[i]), "g/%d", i);
		name_list[i] = names[i];
	}
}

/* Every third is on the CPU, the others on the GPU, on the last one where @i is even. */
static bool on_gpu(int i)
{
	return i % 3 != 0;
}

static int device_of(int i)
{
	return i % 2 ? 0 : gpu_count() - 1;
}

static int value_of(int i)
{
	return 1 + i % 97;
}

struct sources {
	struct gpu_memory memory[2]; /* on device 0 and the last */
	unsigned char cpu[MANY][N];
	struct gpu_foreign f[MANY];
	DLManagedTensorVersioned *handed[MANY];
	const DLTensor *tensors[MANY];
};

static struct sources *make_sources(enum gpu_kind kind)
{
	struct sources *s = calloc(1, sizeof(*s));

	make_names();
	for (int d = 0; d < 2; d++) {
		cuda = gpu_use(d ? gpu_count() - 1 : 0);
		gpu_memory_init(&s->memory[d], kind, (size_t)MANY * N, d ? gpu_count() - 1 : 0);
	}
	for (int i = 0; i < MANY; i++) {
		int d = i % 2 ? 0 : 1;
		CUdeviceptr at = s->memory[d].base + (size_t)i * N;

		cuda = gpu_use(device_of(i));
		if (on_gpu(i))
			gpu_fill(at, value_of(i), N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&s->f[i], at, N, device_of(i));
		if (!on_gpu(i)) {
			memset(s->cpu[i], value_of(i), N);
			s->f[i].managed.dl_tensor.data = s->cpu[i];
			s->f[i].managed.dl_tensor.device = (DLDevice){ kDLCPU, 0 };
		}
		s->handed[i] = &s->f[i].managed;
		s->tensors[i] = &s->f[i].managed.dl_tensor;
	}
	return s;
}

static void free_sources(struct sources *s)
{
	for (int d = 0; d < 2; d++)
		gpu_memory_deinit(&s->memory[d]);
	free(s);
}

static int reads_all(const struct test_daemon *d, void *arg)
{
	tl_get_options o = { .size = sizeof(o), .stream = TL_STREAM_LEGACY };
	DLManagedTensorVersioned *t[MANY];
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	make_names();
	must_be(tl_get_many(client, name_list, MANY, &o, t), 0);
	for (int i = 0; i < MANY; i++) {
		must_be(t[i]->dl_tensor.device.device_type, on_gpu(i) ? kDLCUDA : kDLCPU);
		if (on_gpu(i)) {
			must_be(t[i]->dl_tensor.device.device_id, device_of(i));
			cuda = gpu_use(device_of(i));
			must_be(gpu_read(gpu_data(t[i]), N, CUDA_STREAM_LEGACY), value_of(i));
		} else {
			must_be(((unsigned char *)t[i]->dl_tensor.data)[N - 1], value_of(i));
		}
		drop(t[i]);
	}
	tl_close(client);
	return 0;
}

/* ---- Copies ---- */

static int puts_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct sources *s = make_sources(GPU_LEGACY);

	(void)arg;
	must_be(tl_put_many(client, name_list, s->tensors, MANY, NULL), 0);
	must_be(tl_close(client), 0); /* the copies are ours, and outlive this process */
	free_sources(s);
	return 0;
}

GPU_TEST(copies_of_many_outlive_their_producer)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);
	tl_client *client;

	gpu_setenv("FAKECUDA_DELAY_US", "3000");
	must_be(td_run_client(&g.d, puts_many, NULL), 0);
	must_be(td_run_client(&g.d, reads_all, NULL), 0);
	client = td_connect(&g.d);
	make_names();
	for (int i = 0; i < MANY; i++)
		must_be(tl_delete(client, names[i]), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

/* ---- In place ---- */

static int publishes_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct sources *s = make_sources(*(enum gpu_kind *)arg);
	size_t copied = 0;

	must_be(tl_publish_many(client, name_list, s->handed, MANY, NULL, &copied), 0);
	must_be(copied, (MANY + 2) / 3);
	for (int i = 0; i < MANY; i++)
		must_be(atomic_load(&s->f[i].deleted), !on_gpu(i));
	pause_at(1);
	for (int i = 0; i < MANY; i++)
		must_be(tl_delete(client, names[i]), 0);
	for (int i = 0; i < MANY; i++)
		eventually(atomic_load(&s->f[i].deleted));
	tl_close(client);
	free_sources(s);
	return 0;
}

static void share_many(enum gpu_kind kind, uint64_t exports)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);
	struct test_child p = child_start(&g.d, publishes_many, &kind);

	must_be(child_await(&p), 1);
	must(gpu_charged(&g.d) <= exports);
	must_be(td_run_client(&g.d, reads_all, NULL), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(many_are_published_where_they_lie)
{
	gpu_setenv("FAKECUDA_DELAY_US", "3000");
	for (int kind = 0; kind < GPU_KINDS; kind++)
		share_many((enum gpu_kind)kind, UINT64_C(2) * MANY * N + (16 << 20));
}

/* ---- All or none ---- */

static int must_fail(const struct test_daemon *d, void *arg)
{
	tl_put_options evictable = { .size = sizeof(evictable), .lifetime = TL_LIFETIME_EVICTABLE };
	tl_client *client = gpu_open(d, 0);
	struct sources *s = make_sources(GPU_LEGACY);
	int64_t strides[1] = { 0 };
	tl_info info = { .size = sizeof(info) };

	(void)arg;
	name_list[MANY - 1] = names[1];
	must_refuse(tl_publish_many(client, name_list, s->handed, MANY, NULL, NULL), -EINVAL,
		    "twice");
	name_list[MANY - 1] = names[MANY - 1];
	must_refuse(tl_publish_many(client, name_list, s->handed, MANY, &evictable, NULL), -EINVAL,
		    "evictable");
	s->f[1].managed.dl_tensor.strides = strides;
	s->f[1].shape[0] = N / 2;
	must_refuse(tl_publish_many(client, name_list, s->handed, MANY, NULL, NULL), -ENOTSUP,
		    "contiguous");
	for (int i = 0; i < MANY; i++) {
		must_be(atomic_load(&s->f[i].deleted), 0); /* they stay their owner's */
		must_be(tl_stat(client, names[i], &info), -ENOENT);
	}
	tl_close(client);
	free_sources(s);
	return 0;
}

GPU_TEST(a_group_that_fails_keeps_nothing)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, must_fail, NULL), 0);
	gpu_nothing_left(&g);
}

static const struct memory_kind *device_kind;

/* Goes on when the library's thread has done with the exports what it does. */
static void end_slowly(struct members *m, int end)
{
	struct session *s = m->session;

	device_kind->members_end(m, end);
	eventually(!exports_any(s));
	sched_yield();
}

/* The daemon makes some members, and has no rows for the others. Their memory is not its any more,
 * while the client goes on. */
static int is_refused_often(const struct test_daemon *d, void *arg)
{
	enum { OFTEN = 20 };
	tl_client *client = gpu_open(d, 0);
	struct sources *s = make_sources(GPU_VMM);
	struct memory_kind slow;

	(void)arg;
	device_kind = memory_kinds[KIND_DEVICE];
	slow = *device_kind;
	slow.members_end = end_slowly;
	memory_kinds[KIND_DEVICE] = &slow;
	for (int i = 0; i < OFTEN; i++) {
		must_refuse(tl_publish_many(client, name_list, s->handed, MANY, NULL, NULL),
			    -ENOSPC, "tensors");
		eventually(gpu_charged(d) == 0);
	}
	memory_kinds[KIND_DEVICE] = device_kind;
	tl_close(client);
	free_sources(s);
	return 0;
}

GPU_TEST(a_group_that_fails_leaves_no_memory_with_the_daemon)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm, .max_tensors = MANY - 1);

	must_be(td_run_client(&g.d, is_refused_often, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Drafts ---- */

static int fills_a_group(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const int64_t n = N;
	tl_group_item items[MANY];
	DLDevice devices[MANY];
	tl_group *group;

	make_names();
	for (int i = 0; i < MANY; i++) {
		items[i] = (tl_group_item){ .name = names[i], .shape = &n, .ndim = 1, .dtype = U8 };
		devices[i] = on_gpu(i) ? (DLDevice){ kDLCUDA, device_of(i) }
				       : (DLDevice){ kDLCPU, 0 };
	}
	must_be(tl_group_create(client, items, MANY, &TL_INIT(tl_group_options, .devices = devices),
				&group),
		0);
	for (int i = 0; i < MANY; i++) {
		const DLTensor *t = tl_group_tensor(group, (size_t)i);

		cuda = gpu_use(device_of(i));
		if (on_gpu(i))
			gpu_fill((CUdeviceptr)(uintptr_t)t->data, value_of(i), N,
				 CUDA_STREAM_LEGACY);
		else
			memset(t->data, value_of(i), N);
	}
	if (arg) {
		tl_group_abort(group);
	} else {
		must_be(tl_group_set_stream(group, TL_STREAM_LEGACY, true), 0);
		must_be(tl_group_commit(group), 0);
	}
	tl_close(client);
	return 0;
}

GPU_TEST(a_group_is_filled_in_place_or_given_up)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);
	tl_client *client;
	bool give_up = true;

	must_be(td_run_client(&g.d, fills_a_group, &give_up), 0);
	gpu_nothing_left(&g);
	must_be(td_run_client(&g.d, fills_a_group, NULL), 0);
	must_be(td_run_client(&g.d, reads_all, NULL), 0);
	client = td_connect(&g.d);
	for (int i = 0; i < MANY; i++)
		must_be(tl_delete(client, names[i]), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

static int copies_what_does_not_fit(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const int64_t n = N;
	const tl_group_item items[2] = {
		{ .name = "gpu", .shape = &n, .ndim = 1, .dtype = U8 },
		{ .name = "cpu", .shape = &n, .ndim = 1, .dtype = U8 },
	};
	const DLDevice devices[2] = { { kDLCUDA, 0 }, { kDLCPU, 0 } };
	CUdeviceptr memory = gpu_alloc(2 * (size_t)N);
	struct gpu_foreign f;
	const DLTensor *const source = &f.managed.dl_tensor;
	tl_group *group;

	(void)arg;
	must_be(tl_group_create(client, items, 2, &TL_INIT(tl_group_options, .devices = devices),
				&group),
		0);
	gpu_foreign_init(&f, memory, N, 0);
	must_refuse(tl_group_copy(group, (const DLTensor *const[]){ source, source }), -EINVAL,
		    "'cpu' is on device 2:0 instead of 1:0");
	gpu_foreign_init(&f, memory, 2 * N, 0);
	must_refuse(tl_group_copy(group, (const DLTensor *const[]){ source, NULL }), -EINVAL,
		    "'gpu' has shape[0]");
	gpu_foreign_init(&f, memory, N, 1);
	must_refuse(tl_group_copy(group, (const DLTensor *const[]){ source, NULL }), -EINVAL,
		    "'gpu' is on device 2:1 instead of 2:0");
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_group_copy(group, (const DLTensor *const[]){ source, NULL }), 0);
	tl_group_abort(group);
	tl_close(client);
	gpu_must(cuda->mem_free(memory));
	return 0;
}

GPU_TEST(only_what_fits_is_copied_into_a_group)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, copies_what_does_not_fit, NULL), 0);
	gpu_nothing_left(&g);
}

static int deletes_in_a_group(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const int64_t n = N;
	const tl_group_item items[] = {
		{ .name = "new", .shape = &n, .ndim = 1, .dtype = U8 },
		{ .name = "old", .flags = TL_GROUP_DELETE },
	};
	const DLDevice devices[] = { { kDLCUDA, 0 }, { kDLCUDA, 0 } };
	tl_info info = { .size = sizeof(info) };
	tl_group *group;

	(void)arg;
	gpu_put_draft(client, "old", 1, N, 0, CUDA_STREAM_LEGACY);
	must_be(tl_group_create(client, items, 2, &TL_INIT(tl_group_options, .devices = devices),
				&group),
		0);
	must(!tl_group_tensor(group, 1));
	must_be(tl_group_commit(group), 0);
	must_be(tl_stat(client, "old", &info), -ENOENT);
	must_be(tl_delete(client, "new"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(what_a_group_deletes_needs_no_memory_of_a_gpu)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, deletes_in_a_group, NULL), 0);
	gpu_nothing_left(&g);
}

static int wants_too_much(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const int64_t sizes[][2] = { { INT64_MAX, INT64_MAX }, { INT64_MAX - TL_ALIGNMENT, 1 } };
	const DLDevice devices[] = { { kDLCUDA, 0 }, { kDLCUDA, 0 } };
	tl_group *group;

	(void)arg;
	for (int i = 0; i < 2; i++) {
		const tl_group_item items[] = {
			{ .name = "a", .shape = &sizes[i][0], .ndim = 1, .dtype = U8 },
			{ .name = "b", .shape = &sizes[i][1], .ndim = 1, .dtype = U8 },
		};

		must_refuse(tl_group_create(client, items, 2, NULL, &group), -EINVAL,
			    "2^63-1 bytes");
		must_refuse(tl_group_create(client, items, 2,
					    &TL_INIT(tl_group_options, .devices = devices), &group),
			    -EINVAL, "2^63-1 bytes");
	}
	tl_close(client);
	return 0;
}

GPU_TEST(a_group_has_no_more_bytes_than_a_tensor_may)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, wants_too_much, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A daemon that dies meanwhile ---- */

static int publishes_meanwhile(const struct test_daemon *d, void *group)
{
	enum { TWO = 2 };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *handed[TWO];
	struct gpu_memory m[TWO];
	struct gpu_foreign f[TWO];

	for (int i = 0; i < TWO; i++) {
		gpu_memory_init(&m[i], GPU_VMM, N, 0);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		handed[i] = &f[i].managed;
	}
	if (*(bool *)group) {
		must_be(tl_publish_many(client, name_list, handed, TWO, NULL, NULL), 0);
		must_be(tl_delete(client, names[1]), 0);
	} else {
		must_be(tl_put(client, names[0], &handed[0]->dl_tensor, NULL, NULL), 0);
	}
	must_be(tl_delete(client, names[0]), 0);
	for (int i = 0; i < TWO; i++) {
		if (*(bool *)group)
			eventually(atomic_load(&f[i].deleted));
		gpu_memory_deinit(&m[i]);
	}
	tl_close(client);
	return 0;
}

/* The daemon dies, and another one comes, when the publisher is about to make call @stop. */
static void dies_meanwhile(bool group, const char *stop)
{
	struct test_daemon d = td_start();
	struct test_child c;
	struct gpu_daemon g;

	gpu_setenv("FAKECUDA_FAIL", stop);
	c = child_start(&d, publishes_meanwhile, &group);
	process_await_stop(c.pid);
	td_kill(&d);
	g = gpu_start(.socket = d.socket);
	must_be(kill(c.pid, SIGCONT), 0);
	child_must_succeed(&c);
	gpu_nothing_left(&g);
	td_stop(&g.d);
	td_stop(&d);
}

GPU_TEST(a_group_of_which_no_daemon_has_heard_is_published_by_the_next)
{
	dies_meanwhile(true, "cuMemRetainAllocationHandle:2:-1");
}

GPU_TEST(a_copy_of_which_no_daemon_has_heard_is_published_by_the_next)
{
	dies_meanwhile(false, "cuEventRecord:1:-1");
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	make_names();
	return suite_run();
}
