/* SPDX-License-Identifier: Apache-2.0 */
/* Work on streams that the library must wait for although it gets no event, and streams that it
 * must leave alone. */
#include "tests/gpu/common.h"

#include <dlfcn.h>

enum { N = 3 << 20 };

static tl_draft *draft_new(tl_client *client)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(gpu_create(client, "t", &spec, 0, &draft), 0);
	return draft;
}

static CUdeviceptr draft_data(tl_draft *draft)
{
	return (CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data;
}

/* ---- No event is to be had ---- */

static int aborts_without_events(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_draft *draft = draft_new(client);
	CUdeviceptr first = draft_data(draft);
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_fill(first, 1, N, stream);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	tl_abort(draft);
	draft = draft_new(client);
	if (draft_data(draft) == first)
		gpu_must(cuda->stream_query(stream)); /* nobody writes there any more */
	tl_abort(draft);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(memory_still_written_is_not_handed_out)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "300000");
	gpu_setenv("FAKECUDA_FAIL", "cuEventCreate:1:2");
	must_be(td_run_client(&g.d, aborts_without_events, NULL), 0);
	gpu_nothing_left(&g);
}

static void *drop_on_thread(void *arg)
{
	drop(arg);
	return NULL;
}

/* No other thread can query the stream that is a thread's own. */
static int reads_on_the_threads_stream(const struct test_daemon *d, void *arg)
{
	bool elsewhere = *(bool *)arg;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_PER_THREAD);
	CUdeviceptr to = gpu_alloc(N);
	pthread_t thread;

	gpu_must(cuda->memcpy_dtod_async(to, gpu_data(t), N, CUDA_STREAM_PER_THREAD));
	if (elsewhere) {
		must_be(pthread_create(&thread, NULL, drop_on_thread, t), 0);
		pthread_join(thread, NULL);
	} else {
		drop(t);
	}
	eventually(leases_of(client, 0) == 0);
	gpu_must(cuda->stream_query(CUDA_STREAM_PER_THREAD));
	gpu_must(cuda->mem_free(to));
	tl_close(client);
	return 0;
}

static int publishes_t(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "t", 5, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_threads_stream_is_waited_for_without_an_event)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes_t, NULL);

	gpu_setenv("FAKECUDA_DELAY_US", "300000");
	gpu_setenv("FAKECUDA_FAIL", "cuEventCreate:1:2,cuEventRecord:2:2");
	for (int elsewhere = 0; elsewhere < 2; elsewhere++)
		must_be(td_run_client(&g.d, reads_on_the_threads_stream, &(bool){ elsewhere }), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* ---- Captured streams ---- */

typedef CUresult begin_capture(CUstream stream, int mode);
typedef CUresult end_capture(CUstream stream, void **graph);
typedef CUresult graph_nodes(void *graph, void **nodes, size_t *n);
typedef CUresult graph_destroy(void *graph);

static int writes_while_captured(const struct test_daemon *d, void *arg)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	begin_capture *begin = (begin_capture *)dlsym(library, "cuStreamBeginCapture_v2");
	end_capture *end = (end_capture *)dlsym(library, "cuStreamEndCapture");
	graph_nodes *nodes = (graph_nodes *)dlsym(library, "cuGraphGetNodes");
	graph_destroy *destroy = (graph_destroy *)dlsym(library, "cuGraphDestroy");
	tl_put_options o = { .size = sizeof(o) };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	tl_draft *draft = draft_new(client);
	struct gpu_foreign f;
	CUstream stream;
	void *graph;
	size_t n = 0;

	(void)arg;
	gpu_foreign_init(&f, memory, N, 0);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	gpu_must(begin(stream, CUDA_CAPTURE_MODE_GLOBAL));
	must_refuse(tl_put(client, "u", &f.managed.dl_tensor, &o, NULL), -EBUSY, "captured");
	o.flags = TL_PUBLISH_SEALED;
	must_refuse(tl_put(client, "u", &f.managed.dl_tensor, &o, NULL), -EBUSY, "captured");
	must_refuse(tl_publish(client, "u", &f.managed, &o, NULL, NULL), -EBUSY, "captured");
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	tl_abort(draft);
	gpu_must(end(stream, &graph));
	gpu_must(nodes(graph, NULL, &n));
	must_be(n, 0); /* the graph writes into no memory that others have */
	gpu_must(destroy(graph));
	must_be(f.deleted, 0);
	must_be(tl_put(client, "u", &f.managed.dl_tensor, &o, NULL), 0);
	must_be(tl_delete(client, "u"), 0);
	gpu_must(cuda->mem_free(memory));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	dlclose(library);
	return 0;
}

GPU_TEST(nothing_is_put_into_a_capture)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, writes_while_captured, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
