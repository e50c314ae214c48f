/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that are wanted on another device than they lie on. */
#include <malloc.h>
#include <sys/mman.h>

#include "tests/gpu/common.h"
#include "tests/harness/process.h"

enum { N = 3 << 20 };

static const char *const no_warm[] = { "--warm-time", "0", NULL };

/* "gpu" on device 0, still being written for a while, "wide" there with gaps, and "cpu". */
static int producer(const struct test_daemon *d, void *arg)
{
	static const int64_t shape[2] = { 2, 64 }, strides[2] = { 4096, 1 };
	tl_client *client = gpu_open(d, 0);
	struct gpu_memory m;
	struct gpu_foreign gpu, wide;
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, 2 * N, 0);
	gpu_fill(m.base, 21, N, CUDA_STREAM_LEGACY);
	gpu_fill(m.base + N, 23, 64, CUDA_STREAM_LEGACY);
	gpu_fill(m.base + N + 64, 99, 4096 - 64, CUDA_STREAM_LEGACY);
	gpu_fill(m.base + N + 4096, 24, 64, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&gpu, m.base, N, 0);
	gpu_foreign_init(&wide, m.base + N, 1, 0);
	wide.managed.dl_tensor.ndim = 2;
	wide.managed.dl_tensor.shape = (int64_t *)(uintptr_t)shape;
	wide.managed.dl_tensor.strides = (int64_t *)(uintptr_t)strides;
	must_be(tl_publish(client, "gpu", &gpu.managed, NULL, NULL, NULL), 0);
	must_be(tl_publish(client, "wide", &wide.managed, NULL, NULL, NULL), 0);
	must_be(tl_create(client, "cpu", &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 22, N);
	must_be(tl_commit(draft, &(uint64_t){ 0 }), 0);
	pause_at(1);
	must_be(tl_delete(client, "gpu"), 0);
	must_be(tl_delete(client, "wide"), 0);
	must_be(tl_delete(client, "cpu"), 0);
	eventually(atomic_load(&gpu.deleted) && atomic_load(&wide.deleted));
	tl_close(client);
	gpu_memory_deinit(&m);
	return 0;
}

static DLManagedTensorVersioned *get_on(tl_client *client, const char *name, DLDevice device,
					intptr_t stream)
{
	tl_get_options o = {
		.size = sizeof(o), .flags = TL_GET_DEVICE, .device = device, .stream = stream
	};
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_get(client, name, &o, &t), 0);
	must_be(t->dl_tensor.device.device_type, device.device_type);
	must_be(t->dl_tensor.device.device_id, device.device_id);
	must_be(tl_tensor_info(t, &info), 0);
	must(!strcmp(info.name, name) && info.version == 1);
	must_be(info.device.device_type, device.device_type);
	must_be(info.device.device_id, device.device_id);
	must_be(tl_tensor_check(t), 0);
	return t;
}

static bool copied(const DLManagedTensorVersioned *t)
{
	must(!(t->flags & DLPACK_FLAG_BITMASK_IS_COPIED) !=
	     !(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
	return t->flags & DLPACK_FLAG_BITMASK_IS_COPIED;
}

static const DLDevice cpu = { kDLCPU, 0 };

static DLDevice gpu(int number)
{
	return (DLDevice){ kDLCUDA, number };
}

static void reads_on_cpu(tl_client *client)
{
	DLManagedTensorVersioned *t = get_on(client, "gpu", cpu, TL_STREAM_NONE), *again, *other;
	const unsigned char *bytes = t->dl_tensor.data;

	must(copied(t) && bytes[0] == 21 && !memcmp(bytes, bytes + 1, N - 1));
	drop(t);
	t = get_on(client, "gpu", cpu, TL_STREAM_NONE);
	must_be(tl_remap(t, TL_MODE_READ, &again), 0);
	must(copied(again) && again->dl_tensor.data == t->dl_tensor.data &&
	     again->flags == t->flags);
	must_refuse(tl_remap(t, TL_MODE_COPY_ON_WRITE, &other), -ENOTSUP, "copy-on-write");
	must_refuse(tl_remap(t, (enum tl_mode)7, &other), -EINVAL, "the mode is 7");
	must_refuse(tl_remap(t, TL_MODE_READ, NULL), -EINVAL, "out is NULL");
	drop(t);
	drop(again);
	t = get_on(client, "wide", cpu, TL_STREAM_NONE);
	bytes = t->dl_tensor.data;
	must(copied(t) && t->dl_tensor.strides[0] == 64 && t->dl_tensor.strides[1] == 1);
	must(bytes[0] == 23 && bytes[63] == 23 && bytes[64] == 24 && bytes[127] == 24);
	drop(t);
	t = get_on(client, "cpu", cpu, TL_STREAM_NONE);
	must(!copied(t));
	drop(t);
}

static void reads_on_gpu(tl_client *client, const char *name, int value, int number, CUstream on)
{
	DLManagedTensorVersioned *t, *again;
	CUstream other;

	cuda = gpu_use(number);
	gpu_must(cuda->stream_create(&other, CUDA_STREAM_NON_BLOCKING));
	t = get_on(client, name, gpu(number), (intptr_t)on);
	must(copied(t));
	must_be(gpu_read(gpu_data(t), N, on), value);
	must_be(tl_remap_stream(t, (intptr_t)other, 0, &again), 0);
	must(gpu_data(again) == gpu_data(t) && copied(again));
	drop(t);
	must_be(gpu_read(gpu_data(again), N, other), value);
	gpu_fill(gpu_data(again), 1, N, other); /* nobody else sees that */
	drop(again);
	t = get_on(client, name, gpu(number), TL_STREAM_NONE);
	must_be(gpu_read(gpu_data(t), N, other), value);
	drop(t);
	gpu_must(cuda->stream_destroy(other));
}

static void refuses(tl_client *client)
{
	tl_get_options o = { .size = sizeof(o), .flags = TL_GET_DEVICE, .device = gpu(77) };
	const char *const names[] = { "cpu", "gpu" };
	DLManagedTensorVersioned *t[2] = { NULL, NULL };

	must_refuse(tl_get(client, "cpu", &o, t), -ENODEV, "no GPU 77");
	must_refuse(tl_get_many(client, names, 2, &o, t), -ENODEV, "no GPU 77");
	o.device = (DLDevice){ kDLCPU, 3 };
	must_refuse(tl_get(client, "gpu", &o, t), -EINVAL, "device 3 of type 1");
	o.device = (DLDevice){ kDLMetal, 0 };
	must_refuse(tl_get(client, "gpu", &o, t), -EINVAL, "of type 8");
	o.device = cpu;
	o.flags |= TL_GET_LOCAL;
	must_refuse(tl_get(client, "gpu", &o, t), -EINVAL, "TL_GET_LOCAL");
	o.flags = TL_GET_DEVICE;
	must_be(tl_get(client, "none", &o, t), -ENOENT);
	o.mode = TL_MODE_COPY_ON_WRITE;
	o.device = gpu(0);
	must_refuse(tl_get(client, "gpu", &o, t), -ENOTSUP, "copy-on-write");
	/* the first of them can be had */
	must_refuse(tl_get_many(client, names, 2, &o, t), -ENOTSUP, "copy-on-write");
	must(!t[0] && !t[1]);
}

static int consumer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const char *const names[] = { "cpu", "gpu", "wide" };
	tl_get_options many = { .size = sizeof(many),
				.flags = TL_GET_DEVICE,
				.device = gpu(0),
				.stream = TL_STREAM_LEGACY };
	DLManagedTensorVersioned *t[3];
	CUstream stream;

	(void)arg;
	for (int number = gpu_count() - 1; number >= 0; number--) {
		cuda = gpu_use(number);
		gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
		reads_on_gpu(client, "cpu", 22, number, stream);
		if (number)
			reads_on_gpu(client, "gpu", 21, number, stream);
		gpu_must(cuda->stream_destroy(stream));
	}
	must_be(tl_get_many(client, names, 3, &many, t), 0);
	must(copied(t[0]) && !copied(t[1]) && !copied(t[2]));
	must_be(gpu_read(gpu_data(t[0]), N, CUDA_STREAM_LEGACY), 22);
	must_be(gpu_read(gpu_data(t[1]), N, CUDA_STREAM_LEGACY), 21);
	reads_on_cpu(client);
	refuses(client);
	tl_close(client);
	for (int i = 0; i < 3; i++)
		drop(t[i]); /* the copy outlives its client */
	return 0;
}

GPU_TEST(tensors_are_had_on_any_device_and_copies_say_so)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);
	struct test_child p, c;

	gpu_setenv("FAKECUDA_DELAY_US", "10000");
	p = child_start(&g.d, producer, NULL);
	must_be(child_await(&p), 1);
	c = child_start(&g.d, consumer, NULL);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

static int child_drops_its_copy(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	uintptr_t page;
	pid_t pid;

	(void)arg;
	mallopt(M_MMAP_THRESHOLD, N / 2); /* what is freed is unmapped */
	t = get_on(client, "gpu", cpu, TL_STREAM_NONE);
	page = (uintptr_t)t->dl_tensor.data & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		drop(t);
		_exit(!(msync((void *)page, 1, MS_ASYNC) && errno == ENOMEM));
	}
	process_must_succeed(pid);
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(a_child_frees_its_copy_on_the_cpu)
{
	SKIP_UNLESS(!SANITIZED, "sanitizers keep freed memory for a while");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);
	struct test_child p = child_start_ready(&g.d, producer, NULL);

	must_be(td_run_client(&g.d, child_drops_its_copy, NULL), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

static _Atomic bool left;

static void *leave_on_thread(void *arg)
{
	drop(arg);
	atomic_store(&left, true);
	return NULL;
}

/* Its deleter waits for nothing, although no event is to be had that others can open. */
static int drops_a_copy_without_events(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t, *other;
	pthread_t thread;
	CUdeviceptr first;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	put_bytes(client, "cpu", 7, N);
	t = get_on(client, "cpu", gpu(0), (intptr_t)stream);
	gpu_must(cuda->stream_synchronize(stream));
	first = gpu_data(t);
	gpu_hold(getpid());
	gpu_fill(first, 1, N, stream);
	must_be(pthread_create(&thread, NULL, leave_on_thread, t), 0);
	eventually(atomic_load(&left));
	other = get_on(client, "cpu", gpu(0), TL_STREAM_LEGACY);
	must(gpu_data(other) != first);
	gpu_hold(0);
	pthread_join(thread, NULL);
	drop(other);
	must_be(tl_delete(client, "cpu"), 0);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_copy_is_given_up_without_a_wait_beyond_the_events)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver without events");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	gpu_setenv("FAKECUDA_EVENTS", "0");
	must_be(td_run_client(&g.d, drops_a_copy_without_events, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
