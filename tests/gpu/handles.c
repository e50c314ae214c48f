/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that make CUDA's IPC calls themselves, as producers or as consumers. */
#include "tests/gpu/common.h"

enum { N = 2 << 20, OFFSET = 4096 };

static _Atomic int freed_calls;

static void freed(void *context)
{
	must_be((intptr_t)context, 42);
	atomic_fetch_add(&freed_calls, 1);
}

static void fill_uuid(tl_ipc_handle *h, int device)
{
	struct cuda_uuid uuid;
	CUdevice dev;

	gpu_must(cuda->device_get(&dev, device));
	gpu_must(cuda->device_get_uuid(&uuid, dev));
	memcpy(h->device_uuid, uuid.bytes, sizeof(uuid));
}

/* Publishes its own allocation by handle and event, while the work is still to be done. */
static int raw_producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N + OFFSET);
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_ipc_handle h = { .size = sizeof(h), .allocation_size = N + OFFSET, .offset = OFFSET };
	tl_put_options o = { .size = sizeof(o), .metadata = "m", .metadata_size = 1 };
	const tl_get_options per_thread = { .size = sizeof(per_thread),
					    .stream = TL_STREAM_PER_THREAD };
	DLManagedTensorVersioned *t;
	uint64_t version = 0;
	CUevent event;

	(void)arg;
	fill_uuid(&h, 0);
	gpu_must(cuda->ipc_get_mem_handle((struct cuda_ipc_handle *)h.memory, memory));
	gpu_must(cuda->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cuda->ipc_get_event_handle((struct cuda_ipc_handle *)h.event, event));
	h.has_event = true;
	gpu_hold(getpid());
	gpu_fill(memory + OFFSET, 3, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->event_record(event, CUDA_STREAM_LEGACY));
	h.offset = OFFSET + 1;
	must_refuse(tl_publish_ipc_handle(client, "t", &h, &spec, &o, freed, (void *)42, NULL),
		    -EINVAL, "does not fit");
	h.offset = OFFSET;
	h.reserved[6] = 1;
	must_refuse(tl_publish_ipc_handle(client, "t", &h, &spec, &o, freed, (void *)42, NULL),
		    -EINVAL, "reserved");
	h.reserved[6] = 0;
	must_be(freed_calls, 0);
	must_be(tl_publish_ipc_handle(client, "t", &h, &spec, &o, freed, (void *)42, &version), 0);
	must_be(version, 1);
	must_refuse(tl_get(client, "t", NULL, &t), -ENOTSUP, "only other processes");
	must_refuse(tl_get(client, "t", &per_thread, &t), -ENOTSUP, "only other processes");
	pause_at((uint64_t)getpid());
	must_be(tl_delete(client, "t"), 0);
	parent_tell((uint64_t)freed_calls);
	eventually(freed_calls == 1);
	gpu_must(cuda->event_destroy(event));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	must_be(freed_calls, 1);
	return 0;
}

static CUdeviceptr raw_open(const tl_ipc_handle *h, CUstream stream)
{
	struct cuda_ipc_handle memory, event;
	CUdeviceptr base = 0;
	CUevent e;

	memcpy(&memory, h->memory, sizeof(memory));
	memcpy(&event, h->event, sizeof(event));
	gpu_must(cuda->ipc_open_mem_handle(&base, memory, CUDA_IPC_LAZY_ENABLE_PEER_ACCESS));
	if (h->has_event) {
		gpu_must(cuda->ipc_open_event_handle(&e, event));
		gpu_must(cuda->stream_wait_event(stream, e, 0));
		gpu_must(cuda->event_destroy(e));
	}
	return base;
}

/* One process gets the tensor by handle and by the library. */
static int raw_consumer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_ipc_handle h = { .size = sizeof(h) }, h2 = { .size = sizeof(h2) };
	DLManagedTensorVersioned *by_handle, *by_library, *twice;
	CUdeviceptr base;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	by_library = gpu_get(client, "t", TL_STREAM_NONE);
	must_be(tl_get_ipc_handle(client, "t", NULL, &h, &by_handle), 0);
	must_be(by_handle->dl_tensor.device.device_type, kDLCUDA);
	must_be(by_handle->dl_tensor.device.device_id, -1);
	must(!by_handle->dl_tensor.data);
	must_be(by_handle->dl_tensor.shape[0], N);
	must_be(h.offset, OFFSET);
	must_be(h.allocation_size, N + OFFSET);
	must_be(h.has_event, true);
	must_be(tl_remap(by_handle, TL_MODE_READ, &twice), 0);
	must(!twice->dl_tensor.data);
	drop(twice);
	base = raw_open(&h, stream);
	must_be(base + OFFSET, gpu_data(by_library)); /* one mapping for the process */
	drop(by_library);
	must_be(tl_get_ipc_handle(client, "t", NULL, &h2, &twice), 0);
	must_be(memcmp(h.memory, h2.memory, 64), 0);
	drop(twice);
	pause_at(1);
	must_be(gpu_read(base + OFFSET, N, stream), 3);
	gpu_must(cuda->ipc_close_mem_handle(base));
	pause_at(1); /* the name is gone, the lease is there */
	drop(by_handle);
	gpu_must(cuda->stream_destroy(stream));
	pause_at(1);
	tl_close(client);
	return 0;
}

GPU_TEST(a_handle_of_ones_own)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, raw_producer, NULL), c;

	c = child_start_ready(&g.d, raw_consumer, NULL);
	gpu_hold(0);
	child_step(&c);
	must_be(child_step(&p), 0);
	child_step(&c);
	child_must_succeed(&p);
	child_finish(&c);
	gpu_nothing_left(&g);
}

/* ---- An event that cannot be opened ---- */

/* Nobody says when its work has ended: a get fails at once, also if it may wait for ever. */
static int gets_without_the_event(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = -1 };
	tl_ipc_handle h = { .size = sizeof(h) };
	DLManagedTensorVersioned *t;

	(void)arg;
	must_refuse(tl_get(client, "t", &o, &t), -ENOTSUP, "publish it without an event");
	drop(gpu_get(client, "t", TL_STREAM_NONE));
	must_be(tl_get_ipc_handle(client, "t", NULL, &h, &t), 0);
	must(h.has_event);
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(a_handle_with_an_event_that_cannot_be_opened_is_refused)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, raw_producer, NULL);

	gpu_setenv("FAKECUDA_FAIL", "cuIpcOpenEventHandle:1:201");
	must_be(td_run_client(&g.d, gets_without_the_event, NULL), 0);
	gpu_hold(0);
	child_step(&p);
	child_must_succeed(&p);
	gpu_nothing_left(&g);
}

/* ---- Kinds ---- */

static int other_kinds(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_ipc_handle h = { .size = sizeof(h) };
	DLManagedTensorVersioned *t;
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_put_draft(client, "draft", 1, N, 0, CUDA_STREAM_LEGACY);
	must_refuse(tl_get_ipc_handle(client, "draft", NULL, &h, &t), -ENOTSUP, "tl_get()");
	gpu_memory_init(&m, GPU_POOL, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "pool", &f.managed, NULL, NULL, NULL), 0);
	must_refuse(tl_get_ipc_handle(client, "pool", NULL, &h, &t), -ENOTSUP, "pool");
	put_bytes(client, "cpu", 1, 10);
	must_refuse(tl_get_ipc_handle(client, "cpu", NULL, &h, &t), -ENOTSUP, "not on a GPU");
	must_be(tl_get_ipc_handle(client, "none", NULL, &h, &t), -ENOENT);
	for (uint32_t flag = 1; flag; flag <<= 1)
		must_refuse(tl_get_ipc_handle(client, "none",
					      &TL_INIT(tl_get_options, .flags = flag), &h, &t),
			    -EINVAL, "flags");
	h.size = 8;
	must_be(tl_get_ipc_handle(client, "pool", NULL, &h, &t), -EINVAL);
	must_be(tl_delete(client, "draft") + tl_delete(client, "pool") + tl_delete(client, "cpu"),
		0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

GPU_TEST(only_plain_memory_has_such_handles)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, other_kinds, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Threads that ask and threads that open, on one segment ---- */

static void *asks(void *arg)
{
	tl_ipc_handle h = { .size = sizeof(h) };

	for (int i = 0; i < 200; i++) {
		DLManagedTensorVersioned *t;

		must_be(tl_get_ipc_handle(arg, "t", NULL, &h, &t), 0);
		drop(t);
	}
	return NULL;
}

static void *opens(void *arg)
{
	for (int i = 0; i < 200; i++)
		drop(gpu_get(arg, "t", TL_STREAM_NONE));
	return NULL;
}

/* If asking undid an opening, the producer would free the memory that we read. */
static int racers(const struct test_daemon *d, void *arg)
{
	pthread_t thread[4];
	tl_client *client;

	(void)arg;
	cuda = gpu_use(0);
	client = td_connect(d);
	for (int i = 0; i < 4; i++)
		must_be(pthread_create(&thread[i], NULL, i % 2 ? asks : opens, client), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	pause_at(1);
	tl_close(client);
	return 0;
}

static int freeing_producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

GPU_TEST(asking_does_not_unsay_an_opening)
{
	for (int round = 0; round < 10; round++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, freeing_producer, NULL), c;

		c = child_start_ready(&g.d, racers, NULL);
		child_finish(&p);
		child_finish(&c);
		gpu_nothing_left(&g);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
