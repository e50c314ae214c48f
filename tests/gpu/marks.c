/* SPDX-License-Identifier: Apache-2.0 */
/* Leases that end where the driver does not let their place be marked. */
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
	must(gpu_data(other) != memory);
	drop(other);
	must_be(tl_delete(client, "cpu"), 0);
	atomic_store(&gate.open, 1);
	tl_close(client);
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

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
