/* SPDX-License-Identifier: Apache-2.0 */
/* Leases and drafts that end where the driver does not let their place be marked. */
#include "client/connection/client.h"
#include "client/gpu/session.h"
#include "tests/gpu/gate.h"

enum { N = GPU_T_SIZE };

static void drop_in_host_function(void *t)
{
	drop(t);
}

/* A garbage collector may run in a host function. The one tensor's stream stands still. */
static int drops_in_a_host_function(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	intptr_t streams[2] = { 0, TL_STREAM_PER_THREAD };
	CUdeviceptr to = gpu_alloc(N);
	struct gate gate;
	CUstream other;

	(void)arg;
	gpu_must(cuda->stream_create(&other, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 2; i++) {
		DLManagedTensorVersioned *t;
		CUstream stream;

		gate_close(&gate);
		streams[0] = (intptr_t)gate.stream;
		stream = (CUstream)streams[i];
		t = gpu_get(client, "t", streams[i]);
		if (i) { /* what is queued there comes after the gate */
			CUevent event;

			gpu_must(cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING));
			gpu_must(cuda->event_record(event, gate.stream));
			gpu_must(cuda->stream_wait_event(stream, event, 0));
			gpu_must(cuda->event_destroy(event));
		}
		gpu_must(cuda->memcpy_dtod_async(to, gpu_data(t), N, stream));
		launch(other, drop_in_host_function, t);
		gpu_must(cuda->stream_synchronize(other));
		must_be(leases_of(client, 0), 1);
		atomic_store(&gate.open, 1);
		eventually(leases_of(client, 0) == 0);
		gate_open(&gate);
	}
	gpu_must(cuda->stream_destroy(other));
	gpu_must(cuda->mem_free(to));
	tl_close(client);
	return 0;
}

GPU_TEST(a_lease_that_a_host_function_gives_up_outlasts_the_work)
{
	SKIP_UNLESS(!gpu_is_real(), "a real driver may deadlock there");
	gpu_with_producer(gpu_publishes_t, drops_in_a_host_function, NULL);
}

/* It may refuse some calls, and not others. */
GPU_TEST(nor_does_it_end_early_if_only_streams_cannot_be_asked)
{
	SKIP_UNLESS(!gpu_is_real(), "a real driver may deadlock there");
	gpu_setenv("FAKECUDA_HOST_CONTEXTS", "1");
	gpu_with_producer(gpu_publishes_t, drops_in_a_host_function, NULL);
}

/* The memory of a copy is used again when it has been read. */
static int drops_a_copy_in_a_host_function(const struct test_daemon *d, void *arg)
{
	tl_get_options o = { .size = sizeof(o),
			     .flags = TL_GET_DEVICE,
			     .device = { kDLCUDA, 0 },
			     .timeout_ns = WAIT_S * SECOND };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t, *other;
	CUdeviceptr memory;
	struct gate gate;
	CUstream stream;

	(void)arg;
	put_bytes(client, "cpu", 1, N);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gate_close(&gate);
	o.stream = (intptr_t)gate.stream;
	must_be(tl_get(client, "cpu", &o, &t), 0);
	memory = gpu_data(t);
	launch(stream, drop_in_host_function, t);
	gpu_must(cuda->stream_synchronize(stream));
	o.stream = (intptr_t)stream;
	must_be(tl_get(client, "cpu", &o, &other), 0);
	must(gpu_data(other) != memory && gpu_live(FAKE_VMM_MAPPING));
	drop(other);
	must_be(tl_delete(client, "cpu"), 0);
	atomic_store(&gate.open, 1);
	tl_close(client);
	/* the lease's stream must stay until it has ended */
	eventually(!gpu_live(FAKE_VMM_MAPPING));
	gate_open(&gate);
	gpu_must(cuda->stream_destroy(stream));
	return 0;
}

GPU_TEST(a_copy_that_a_host_function_gives_up_keeps_its_memory)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	SKIP_UNLESS(!gpu_is_real(), "a real driver may deadlock there");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, drops_a_copy_in_a_host_function, NULL), 0);
	gpu_nothing_left(&g);
}

/* Events are of one context, and so are the streams that take them. */
static int gets_for_another_context(const struct test_daemon *d, void *arg)
{
	CUresult (*create)(CUcontext * context, unsigned flags, CUdevice device);
	CUresult (*destroy)(CUcontext context);
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	CUcontext context, popped;
	CUstream stream;

	(void)arg;
	*(void **)&create = dlsym(library, "cuCtxCreate_v2");
	*(void **)&destroy = dlsym(library, "cuCtxDestroy_v2");
	gpu_must(create(&context, 0, 0));
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cuda->ctx_pop(&popped));
	must_refuse(tl_get(client, "t",
			   &(tl_get_options){ .size = sizeof(tl_get_options),
					      .timeout_ns = WAIT_S * SECOND,
					      .stream = (intptr_t)stream },
			   &t),
		    -EINVAL, "another context");
	must_be(leases_of(client, 0), 0);
	gpu_must(cuda->ctx_push(context));
	gpu_must(cuda->stream_destroy(stream));
	gpu_must(cuda->ctx_pop(&popped));
	gpu_must(destroy(context));
	dlclose(library);
	tl_close(client);
	return 0;
}

GPU_TEST(a_stream_that_cannot_be_marked_is_refused)
{
	gpu_with_producer(gpu_publishes_t, gets_for_another_context, NULL);
}

/* ---- Draft buffers ---- */

static struct {
	struct gpu_foreign f;
	CUdeviceptr memory;
	_Atomic bool begun, may_end;
} busy;

static void delete_slowly(DLManagedTensorVersioned *managed)
{
	atomic_store(&busy.begun, true);
	eventually(atomic_load(&busy.may_end));
	gpu_foreign_delete(managed);
}

/* From here to thread_goes_on() the library's thread is in a deleter, and ends no publication. */
static void thread_stands_still(tl_client *client)
{
	busy.memory = gpu_alloc(N);
	gpu_foreign_init(&busy.f, busy.memory, N, 0);
	busy.f.managed.deleter = delete_slowly;
	must_be(tl_publish(client, "busy", &busy.f.managed, NULL, NULL, NULL), 0);
	must_be(tl_delete(client, "busy"), 0);
	eventually(atomic_load(&busy.begun));
}

static void thread_goes_on(void)
{
	atomic_store(&busy.may_end, true);
	eventually(atomic_load(&busy.f.deleted));
	gpu_must(cuda->mem_free(busy.memory));
}

/* How many buffers may be given back to the driver, with their exports. */
static unsigned free_buffers(tl_client *client)
{
	const struct session *s = atomic_load(&client->session);
	unsigned n;

	pthread_mutex_lock(&cuda_lock);
	n = cuda_of(s)->nbuffers;
	pthread_mutex_unlock(&cuda_lock);
	return n;
}

static CUresult refuse_to_say(CUstream stream)
{
	(void)stream;
	return CUDA_E_LAUNCH_FAILED;
}

static int ends_a_draft_unmarked(const struct test_daemon *d, void *arg)
{
	const int64_t n = N;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_client *client = gpu_open(d, 0);
	struct cuda_driver *driver = (struct cuda_driver *)(uintptr_t)cuda;
	CUresult (*query)(CUstream stream) = driver->stream_query;
	CUstream stream;
	tl_draft *draft;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	thread_stands_still(client);
	driver->stream_query = refuse_to_say;
	tl_abort(draft);
	driver->stream_query = query;
	must_be(free_buffers(client), 0);
	thread_goes_on();
	eventually(free_buffers(client) == 1);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_draft_whose_end_cannot_be_marked_keeps_its_buffer_until_it_is_over)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, ends_a_draft_unmarked, NULL), 0);
	gpu_nothing_left(&g);
}

/* The first member lies in a draft buffer, and the second cannot be exported. */
static int fails_after_the_first(const struct test_daemon *d, void *arg)
{
	static const char *const names[2] = { "empty", "full" };
	const tl_put_options o = { .size = sizeof(o), .stream = TL_STREAM_NONE };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f[2];
	DLManagedTensorVersioned *handed[2] = { &f[0].managed, &f[1].managed };

	(void)arg;
	gpu_foreign_init(&f[0], memory, 0, 0);
	gpu_foreign_init(&f[1], memory, N, 0);
	thread_stands_still(client);
	must_be(tl_publish_many(client, names, handed, 2, &o, NULL), -ENOTSUP);
	must_be(free_buffers(client), 0);
	thread_goes_on();
	eventually(free_buffers(client) == 1);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(a_group_that_fails_keeps_its_buffer_until_its_members_are_over)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_FAIL", "cuIpcGetMemHandle:2:999");
	must_be(td_run_client(&g.d, fails_after_the_first, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
