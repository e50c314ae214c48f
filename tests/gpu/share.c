/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on a GPU that one process publishes where they are, in each kind of memory, and others
 * get. */
#include "tests/gpu/common.h"
#include <sys/mman.h>

enum { N = 3 << 20 };

/* Publishes what the test asks for, and stays until it is told to end. */
struct producing {
	int device;
	int value;
	uint32_t flags; /* TL_PUBLISH_* */
	size_t at;	/* the tensor's offset in its allocation */
};

static int legacy_producer(const struct test_daemon *d, void *arg)
{
	const struct producing *p = arg;
	tl_client *client = gpu_open(d, p->device);
	CUdeviceptr memory = gpu_alloc(N + p->at);
	tl_put_options o = { .size = sizeof(o), .flags = p->flags };
	struct gpu_foreign f;
	uint64_t version;
	bool copied = true;

	gpu_fill(memory + p->at, p->value, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory + p->at, N, p->device);
	must_be(tl_publish(client, "t", &f.managed, &o, &copied, &version), 0);
	must_be(copied, false);
	pause_at(version);
	must_be(f.deleted, 0);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	must_be(f.deleted, 1);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

static int reader(const struct test_daemon *d, void *arg)
{
	const struct producing *p = arg;
	tl_client *client = gpu_open(d, p->device);
	CUstream stream;
	DLManagedTensorVersioned *t;
	tl_info info = { .size = sizeof(info) };

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 3; i++) {
		t = gpu_get(client, "t", (intptr_t)stream);
		must_be(t->dl_tensor.device.device_id, p->device);
		must_be(t->dl_tensor.shape[0], N);
		must(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
		must_be(gpu_read(gpu_data(t), N, stream), p->value);
		must_be(tl_tensor_info(t, &info), 0);
		must_be(info.version, 1);
		must_be(info.device.device_id, p->device);
		must_be(tl_tensor_check(t), 0);
		drop(t);
	}
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

static void share(const struct producing *p, child_fn *producer)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child child = child_start(&d, producer, (void *)p);

	must_be(child_await(&child), 1);
	must_be(td_run_client(&d, reader, (void *)p), 0);
	child_finish(&child);
	must_be(gpu_live_all(), 0);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
	must_be(gpu_violations(FAKE_EVENT_DESTROYED_EARLY), 0);
}

GPU_TEST(a_plain_allocation_is_shared_by_its_handle)
{
	share(&(struct producing){ .value = 7 }, legacy_producer);
}

GPU_TEST(a_tensor_inside_a_larger_allocation)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	share(&(struct producing){ .value = 8, .at = 123456 * 4, .device = 1 }, legacy_producer);
}

/* ---- Handing on ---- */

static int hands_on(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_NONE);

	must_be(tl_handover(client, t, 0, 0, arg), 0);
	drop(t);
	pause_at(1);
	tl_close(client);
	return 0;
}

static int receives(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = NULL;
	tl_get_options o = { .size = sizeof(o) };
	CUstream stream;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	must_be(tl_receive(client, arg, &o, &t), 0);
	pause_at(1);
	must_be(gpu_read(gpu_data(t), N, stream), 7);
	drop(t);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

/* The producer gets its memory back only when the receiver has released it. */
static void hand_on(child_fn *producer)
{
	cleanup_td struct test_daemon d = td_start();
	unsigned char *token = mmap(NULL, TL_TOKEN_SIZE, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct test_child p, sender, receiver;

	must(token != MAP_FAILED);
	p = child_start_ready(&d, producer, &(struct producing){ .value = 7 });
	sender = child_start_ready(&d, hands_on, token);
	child_go(&p); /* deletes the name, and waits for its memory */
	eventually(td_status(&d).tensors == 0);
	must_be(td_status(&d).retired, 1);
	receiver = child_start_ready(&d, receives, token);
	must_be(td_status(&d).retired, 1);
	child_finish(&sender);
	must_be(td_status(&d).retired, 1);
	child_finish(&receiver);
	child_must_succeed(&p);
	must_be(td_status(&d).retired, 0);
	munmap(token, TL_TOKEN_SIZE);
	must_be(gpu_live_all(), 0);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
}

GPU_TEST(a_tensor_is_handed_on_though_its_name_is_deleted)
{
	hand_on(legacy_producer);
}

/* ---- Streams of others ---- */

static int draft_producer(const struct test_daemon *d, void *arg)
{
	const struct producing *p = arg;
	tl_client *client = gpu_open(d, p->device);

	pause_at(gpu_put_draft(client, "t", p->value, N, p->device, CUDA_STREAM_LEGACY));
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

/* Nobody could tell there when it has read the tensor. */
static int gets_for_another_gpu(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 1);
	tl_get_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *held, *t;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	must_refuse(tl_get(client, "t", &o, &t), -EINVAL, "another GPU");
	held = gpu_get(client, "t", TL_STREAM_NONE);
	must_refuse(tl_remap_stream(held, o.stream, 0, &t), -EINVAL, "another GPU");
	drop(held);
	must_be(tl_delete(client, "t"), 0);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_stream_of_another_gpu_is_refused)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, draft_producer,
						&(struct producing){ .value = 5 });

	must_be(td_run_client(&g.d, gets_for_another_gpu, NULL), 0);
	child_kill(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(a_sealed_tensor_needs_no_event)
{
	gpu_setenv("FAKECUDA_DELAY_US", "20000");
	share(&(struct producing){ .value = 9, .flags = TL_PUBLISH_SEALED }, legacy_producer);
}

GPU_TEST(the_consumer_waits_for_the_producers_work)
{
	gpu_setenv("FAKECUDA_DELAY_US", "50000");
	share(&(struct producing){ .value = 10 }, legacy_producer);
}

/* ---- Draft buffers ---- */

GPU_TEST(a_draft_on_a_gpu_is_filled_in_place)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	gpu_setenv("FAKECUDA_DELAY_US", "20000");
	share(&(struct producing){ .value = 11, .device = 1 }, draft_producer);
}

static int reuses_blocks(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	const void *seen[8] = { 0 };
	unsigned distinct = 0;

	(void)arg;
	for (int i = 0; i < 40; i++) {
		const void *data;
		tl_draft *draft;
		unsigned k = 0;
		uint64_t version;

		must_be(gpu_create(client, "t", &spec, 0, &draft), 0);
		data = tl_draft_tensor(draft)->data;
		while (k < distinct && seen[k] != data)
			k++;
		must(k < 8);
		if (k == distinct)
			seen[distinct++] = data;
		gpu_fill((CUdeviceptr)(uintptr_t)data, i, N, CUDA_STREAM_LEGACY);
		must_be(tl_commit(draft, &version), 0);
		must_be(version, i + 1);
		/* Without this, draft buffers pile up behind the fake's memset, as behind any GPU
		 * that is slower than its producer. */
		gpu_must(cuda->stream_synchronize(CUDA_STREAM_LEGACY));
	}
	tl_close(client);
	return 0;
}

GPU_TEST(blocks_are_used_again)
{
	cleanup_td struct test_daemon d = td_start();

	must_be(td_run_client(&d, reuses_blocks, NULL), 0);
	must_be(gpu_live_all(), 0);
}

/* ---- In the publishing process itself ---- */

static int own_reader(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	CUdeviceptr memory = gpu_alloc(N);
	DLManagedTensorVersioned *a, *b;
	struct gpu_foreign f;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_fill(memory, 5, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	a = gpu_get(client, "t", (intptr_t)stream);
	b = gpu_get(other, "t", (intptr_t)stream);
	must_be(gpu_data(a), memory); /* a process cannot open its own handle, so this is the memory
					 itself */
	must_be(gpu_data(b), memory);
	must_be(gpu_read(gpu_data(b), N, stream), 5);
	must_be(gpu_live(FAKE_IMPORT), 0);
	must_be(tl_delete(other, "t"), 0);
	drop(a);
	must_be(f.deleted, 0);
	must_be(gpu_read(gpu_data(b), N, stream), 5);
	drop(b);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(memory));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(other);
	tl_close(client);
	return 0;
}

GPU_TEST(ones_own_tensor_is_the_memory_itself)
{
	cleanup_td struct test_daemon d = td_start();

	gpu_setenv("FAKECUDA_DELAY_US", "10000");
	must_be(td_run_client(&d, own_reader, NULL), 0);
	must_be(gpu_live_all(), 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
