/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs are found by UUID: processes may number them differently, see only some, or have none. */
#include "tests/gpu/common.h"

enum { N = 2 << 20 };

/* Publishes "gpu0" and "gpu1" on those physical devices, whatever their numbers here, and "cpu". If
 * there is one device only, both are on it. */
static int producer(const struct test_daemon *d, void *arg)
{
	const int *physical = arg; /* the physical devices, by their numbers here */
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	CUdeviceptr memory;

	for (int i = 0; i < 2; i++) {
		const char *name = physical[i] ? "gpu1" : "gpu0";
		int device = i < gpu_count() ? i : 0;

		gpu_use(device);
		if (physical[i]) {
			gpu_put_draft(client, name, 50 + physical[i], N, device,
				      CUDA_STREAM_LEGACY);
			continue;
		}
		memory = gpu_alloc(N);
		gpu_fill(memory, 50 + physical[i], N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f, memory, N, device);
		must_be(tl_publish(client, name, &f.managed, NULL, NULL, NULL), 0);
	}
	put_bytes(client, "cpu", 5, 1000);
	pause_at(1);
	must_be(tl_delete(client, "gpu0") + tl_delete(client, "gpu1"), 0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

struct seeing {
	int number[2]; /* here, of each physical device; -1: it is not visible */
};

static int consumer(const struct test_daemon *d, void *arg)
{
	const struct seeing *s = arg;
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t;

	cuda = gpu_use(s->number[0] >= 0 ? s->number[0] : s->number[1]);
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "gpu1" : "gpu0";
		char text[64], instance[64];
		tl_info info = { .size = sizeof(info) };

		must_be(tl_stat(client, name, &info), 0);
		snprintf(text, sizeof(text), "GPU-%02x%02x%02x%02x-", info.device_uuid[0],
			 info.device_uuid[1], info.device_uuid[2], info.device_uuid[3]);
		if (s->number[i] < 0) {
			must_be(info.device.device_id, -1);
			must_refuse(tl_get(client, name, NULL, &t), -ENODEV, text);
			must(strstr(tl_last_error(), "CUDA_VISIBLE_DEVICES"));
			/* whether it is an instance is not known here */
			snprintf(instance, sizeof(instance), "MIG%s", text + 3);
			must(strstr(tl_last_error(), instance));
			continue;
		}
		gpu_use(s->number[i]);
		t = gpu_get(client, name, TL_STREAM_LEGACY);
		must_be(t->dl_tensor.device.device_id, s->number[i]);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 50 + i);
		must_be(tl_tensor_info(t, &info), 0);
		must_be(info.device.device_id, s->number[i]);
		drop(t);
	}
	must(all_bytes(t = get(client, "cpu"), 5, 1000));
	drop(t);
	tl_close(client);
	return 0;
}

static void with_visible(const struct test_daemon *d, const char *visible, struct seeing *s)
{
	gpu_setenv("CUDA_VISIBLE_DEVICES", visible);
	must_be(td_run_client(d, consumer, s), 0);
}

static void numbers_differ(void)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p;
	tl_client *client;

	gpu_setenv("CUDA_VISIBLE_DEVICES", "1,0");
	p = child_start_ready(&g.d, producer, (int[]){ 1, 0 });
	with_visible(&g.d, "0,1", &(struct seeing){ { 0, 1 } });
	with_visible(&g.d, "1,0", &(struct seeing){ { 1, 0 } });
	with_visible(&g.d, "1", &(struct seeing){ { -1, 0 } });
	with_visible(&g.d, "0", &(struct seeing){ { 0, -1 } });
	child_finish(&p);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "cpu"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

GPU_TEST(numbers_differ_between_processes)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	numbers_differ();
}

/* ---- No CUDA at all ---- */

static int look(const tl_info *info, void *context)
{
	if (strncmp(info->name, "gpu", 3) != 0)
		return 0;
	must_be(info->device.device_type, kDLCUDA);
	must_be(info->device.device_id, -1);
	must_be(info->nbytes, N);
	must(info->device_uuid[0] | info->device_uuid[1] | info->device_uuid[15]);
	++*(int *)context;
	return 0;
}

static int bare(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	const char *why = NULL;
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_cuda_info cuda_info = { .size = sizeof(cuda_info) };
	tl_ipc_handle handle = { .size = sizeof(handle) };
	DLManagedTensorVersioned *t, *got[2];
	struct gpu_foreign f;
	tl_draft *draft;
	uint64_t used = 0;
	int seen = 0;

	must(!cuda_driver_get(&why));
	must_refuse(tl_get(client, "gpu0", NULL, &t), -ENODEV, arg);
	must_refuse(tl_get(client, "gpu1", NULL, &t), -ENODEV, arg);
	must_refuse(gpu_create(client, "x", &spec, 0, &draft), -ENODEV, arg);
	must_refuse(tl_get_cuda_info(0, &cuda_info), -ENODEV, arg);
	gpu_foreign_init(&f, 1 << 30, N, 0);
	must_refuse(tl_publish(client, "x", &f.managed, NULL, NULL, NULL), -ENODEV, arg);
	must_refuse(tl_put(client, "x", &f.managed.dl_tensor, NULL, NULL), -ENODEV, arg);
	must_be(f.deleted, 0);
	must_be(tl_get_many(client, (const char *[]){ "cpu", "gpu0" }, 2, NULL, got), -ENODEV);
	must_be(tl_list(client, NULL, look, &seen), 0);
	must_be(seen, 2);
	must_be(tl_list_devices(client, gpu_add_usage, &used), 0);
	must(used >= 2 * N);
	/* The caller opens handles, so that needs no CUDA here. */
	must_be(tl_get_ipc_handle(client, "gpu0", NULL, &handle, &t), 0);
	must_be(t->dl_tensor.device.device_id, -1);
	must_be(handle.allocation_size, N);
	drop(t);
	must(all_bytes(t = get(client, "cpu"), 5, 1000));
	drop(t);
	put_bytes(client, "mine", 6, 4096);
	must_be(tl_delete(client, "mine"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(without_cuda_all_else_works)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, producer, (int[]){ 0, 1 });
	tl_client *client;

	gpu_setenv("FAKECUDA_INIT", "100");
	must_be(td_run_client(&g.d, bare, (void *)"no device"), 0);
	gpu_setenv("FAKECUDA_INIT", "0");
	gpu_setenv("FAKECUDA_HIDE", "cuIpcOpenMemHandle,cuInit");
	must_be(td_run_client(&g.d, bare, (void *)"cu"), 0);
	child_finish(&p);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "cpu"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

/* Runs the program again without a libcuda: a program reads the library path when it starts. */
static int start_bare(const struct test_daemon *d, void *arg)
{
	char *argv[] = { (char *)"bare", (char *)d->socket, NULL };

	(void)arg;
	unsetenv("LD_LIBRARY_PATH");
	execv("/proc/self/exe", argv);
	return 1;
}

static int bare_main(const char *socket)
{
	struct test_daemon d = { 0 };

	snprintf(d.socket, sizeof(d.socket), "%s", socket);
	if (cuda_driver_get(NULL)) {
		printf("SKIP: this machine has a libcuda.so.1 of its own\n");
		return 0;
	}
	return bare(&d, (void *)"libcuda.so.1");
}

GPU_TEST(without_a_driver_all_else_works)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, producer, (int[]){ 0, 1 });
	tl_client *client;

	must_be(td_run_client(&g.d, start_bare, NULL), 0);
	child_finish(&p);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "cpu"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

static int tells_about_itself(const struct test_daemon *d, void *arg)
{
	tl_cuda_info info[FAKE_DEVICES];
	int count = *(int *)arg;
	char words[32];

	(void)d;
	for (int i = 0; i < count; i++) {
		info[i] = (tl_cuda_info){ .size = sizeof(info[i]) };
		must_be(tl_get_cuda_info(i, &info[i]), 0);
		must_be(info[i].count, count);
		must(info[i].vmm && info[i].legacy_ipc && info[i].memory_pools);
		must(info[i].total_bytes > 0 && info[i].name[0] && info[i].driver_version >= 11000);
		for (int k = 0; k < i; k++)
			must(memcmp(info[k].uuid, info[i].uuid, 16) != 0);
	}
	snprintf(words, sizeof(words), "sees %d", count);
	must_refuse(tl_get_cuda_info(count, &info[0]), -ENODEV, words);
	must_be(gpu_live_all(), 0); /* not even a context */
	return 0;
}

GPU_TEST(gpus_are_described)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	int count = gpu_devices();

	must_be(td_run_client(&g.d, tells_about_itself, &count), 0);
	gpu_nothing_left(&g);
}

static int has_no_pools(const struct test_daemon *d, void *arg)
{
	tl_cuda_info info = { .size = sizeof(info) };

	(void)d;
	(void)arg;
	must_be(tl_get_cuda_info(0, &info), 0);
	must_be(info.memory_pools, false);
	return 0;
}

GPU_TEST(pools_that_cannot_be_exported_are_not_reported)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver without descriptors");
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_NO_VMM", "1");
	must_be(td_run_client(&g.d, has_no_pools, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[0], "bare"))
		return bare_main(argv[1]);
	gpu_init(argv);
	return suite_run();
}
