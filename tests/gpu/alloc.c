/* SPDX-License-Identifier: Apache-2.0 */
/* tl_cuda_alloc() and tl_cuda_free(), as the allocators of other libraries call them. */
#include <dlfcn.h>
#include <sys/wait.h>

#include "tests/gpu/common.h"
#include "tests/gpu/exports.h"

enum { N = 3 << 20, SMALL = 4096, FULL = 16 << 20 };

typedef CUresult begin_capture(CUstream stream, int mode);
typedef CUresult end_capture(CUstream stream, void **graph);
typedef CUresult graph_destroy(void *graph);

static CUdeviceptr alloc(size_t size, int device)
{
	void *memory = tl_cuda_alloc(size, device, NULL);

	if (!memory)
		fprintf(stderr, "%s\n", tl_last_error());
	must(memory);
	return (CUdeviceptr)(uintptr_t)memory;
}

static void give_back(CUdeviceptr memory, size_t size, int device, CUstream stream)
{
	tl_cuda_free((void *)(uintptr_t)memory, size, device, stream);
}

static bool is_there(CUdeviceptr memory)
{
	CUdeviceptr base;
	size_t size;

	return !cuda->mem_get_address_range(&base, &size, memory);
}

/* ---- Shared in place ---- */

static void publish(tl_client *client, const char *name, struct gpu_foreign *f, CUdeviceptr at,
		    int64_t n)
{
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	bool copied = true;

	gpu_foreign_init(f, at, n, 0);
	must_be(tl_publish(client, name, &f->managed, &sealed, &copied, NULL), 0);
	must_be(copied, false);
}

static int publishes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = alloc(N, 0);
	static struct gpu_foreign f[2];

	(void)arg;
	gpu_fill(memory, 1, SMALL, CUDA_STREAM_LEGACY);
	gpu_fill(memory + SMALL, 2, N - SMALL, CUDA_STREAM_LEGACY);
	publish(client, "a", &f[0], memory, SMALL);
	publish(client, "b", &f[1], memory + SMALL, N - SMALL);
	pause_at(1);
	return 0;
}

static int reads(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *a = gpu_get(client, "a", TL_STREAM_LEGACY);
	DLManagedTensorVersioned *b = gpu_get(client, "b", TL_STREAM_LEGACY);

	(void)arg;
	must_be(gpu_read(gpu_data(a), SMALL, CUDA_STREAM_LEGACY), 1);
	must_be(gpu_read(gpu_data(b), N - SMALL, CUDA_STREAM_LEGACY), 2);
	must_be(gpu_data(b) - gpu_data(a), SMALL); /* one allocation, opened once */
	drop(a);
	drop(b);
	must_be(tl_delete(client, "a"), 0);
	must_be(tl_delete(client, "b"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(tensors_in_it_are_shared_in_place_and_outlive_their_producer)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes, NULL);

	must_be(gpu_charged(&g.d), 4 << 20);
	child_kill(&p);
	must_be(td_run_client(&g.d, reads, NULL), 0);
	gpu_nothing_left(&g);
}

/* What a pool does: it frees a segment when the deleters of all tensors in it were called. */
static int cycles(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 50; i++) {
		CUdeviceptr memory = alloc(N, 0);
		DLManagedTensorVersioned *t;

		gpu_fill(memory, i, N, CUDA_STREAM_LEGACY);
		publish(client, "t", &f, memory, N);
		t = gpu_get(client, "t", (intptr_t)stream);
		must_be(gpu_read(gpu_data(t), N, stream), i);
		drop(t);
		must_be(tl_delete(client, "t"), 0);
		eventually(atomic_load(&f.deleted));
		gpu_fill(memory, 99, N, stream);
		give_back(memory, N, 0, stream);
	}
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(it_is_published_and_freed_again_and_again)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	must_be(td_run_client(&g.d, cycles, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- It stays mapped ---- */

/* Publishes, and deletes when it may go on, again and again. */
static int comes_and_goes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = alloc(N, 0);
	static struct gpu_foreign f;

	(void)arg;
	for (int i = 1; i <= 3; i++) {
		gpu_fill(memory, i, N, CUDA_STREAM_LEGACY);
		publish(client, "t", &f, memory, N);
		pause_at(1);
		must_be(tl_delete(client, "t"), 0);
		eventually(atomic_load(&f.deleted));
	}
	parent_tell(2);
	pause_at(1);
	give_back(memory, N, 0, NULL);
	parent_tell(3);
	parent_await();
	tl_close(client);
	return 0;
}

static int gets_each(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr at = 0;

	(void)arg;
	for (int i = 1; i <= 3; i++) {
		DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);

		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), i);
		must(!at || gpu_data(t) == at);
		at = gpu_data(t);
		drop(t);
		pause_at(1);
	}
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0); /* it has closed it as well */
	tl_close(client);
	return 0;
}

GPU_TEST(consumers_keep_it_mapped_until_it_is_freed)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, comes_and_goes, NULL), c;

	c = child_start_ready(&g.d, gets_each, NULL);
	for (int i = 0; i < 2; i++) {
		must_be(child_step(&p), 1);
		must_be(child_step(&c), 1);
	}
	must_be(child_step(&p), 2);
	must_be(child_await(&p), 1);
	must_be(gpu_charged(&g.d), 4 << 20); /* nothing is published, and it is open */
	must(gpu_is_real() || gpu_live(FAKE_VMM_MAPPING) == 2);
	must_be(child_step(&p), 3);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* A client that is closed, a daemon that is killed and a process that ends leave nothing of it. */
static int leaves_it_open(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = alloc(N, 0);
	static struct gpu_foreign f;

	gpu_fill(memory, 1, N, CUDA_STREAM_LEGACY);
	publish(client, "t", &f, memory, N);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	if (arg)
		pause_at(1); /* the daemon is killed */
	tl_close(client);
	give_back(memory, N, 0, NULL);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	return 0;
}

GPU_TEST(a_closed_client_keeps_nothing_open)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, leaves_it_open, NULL), 0);
	gpu_nothing_left(&g);
}

static void kill_daemon_under(child_fn *child)
{
	struct gpu_daemon g = gpu_start(), next;
	struct test_child c = child_start_ready(&g.d, child, &g);

	td_kill(&g.d);
	child_finish(&c);
	must_be(gpu_live_all(), 0);
	next = gpu_start(.socket = g.d.socket); /* removes what the dead one left */
	gpu_nothing_left(&next);
	td_stop(&next.d);
	td_stop(&g.d);
}

GPU_TEST(a_killed_daemon_keeps_nothing_open)
{
	kill_daemon_under(leaves_it_open);
}

/* A lease keeps the session, at the end of which the memory's export is freed. */
static int closes_over_a_lease(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const struct session *s = atomic_load(&client->session);
	CUdeviceptr memory = alloc(N, 0), others = gpu_alloc(N);
	static struct gpu_foreign f, other;
	DLManagedTensorVersioned *held;

	(void)arg;
	publish(client, "other", &other, others, N);
	publish(client, "t", &f, memory, N);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	put_bytes(client, "cpu", 1, 100);
	must_be(tl_get(client, "cpu", NULL, &held), 0);
	pause_at(1); /* the daemon is killed */
	tl_close(client);
	eventually(atomic_load(&other.deleted)); /* the library's thread has looked at both */
	must(exports_any(s));
	drop(held);
	give_back(memory, N, 0, NULL);
	gpu_must(cuda->mem_free(others));
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	return 0;
}

GPU_TEST(an_export_that_nobody_uses_ends_with_its_session)
{
	kill_daemon_under(closes_over_a_lease);
}

/* ---- Work that is still queued ---- */

static int frees_what_is_written(const struct test_daemon *d, void *arg)
{
	CUstream stream;

	(void)d;
	(void)arg;
	cuda = gpu_use(0);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 8; i++) {
		CUdeviceptr memory = alloc(FULL, 0); /* waits for the one before */

		gpu_fill(memory, i, FULL, stream);
		give_back(memory, FULL, 0, stream);
	}
	gpu_must(cuda->stream_destroy(stream));
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	return 0;
}

GPU_TEST(freed_memory_is_there_until_its_stream_is_done_and_then_for_the_next)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_EARLY_UNMAP", "1"); /* only what is queued shows when to unmap */
	gpu_setenv("FAKECUDA_DELAY_US", "20000");
	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	must_be(td_run_client(&g.d, frees_what_is_written, NULL), 0);
	gpu_nothing_left(&g);
}

static int frees_while_captured(const struct test_daemon *d, void *arg)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	begin_capture *begin = (begin_capture *)dlsym(library, "cuStreamBeginCapture_v2");
	end_capture *end = (end_capture *)dlsym(library, "cuStreamEndCapture");
	graph_destroy *destroy = (graph_destroy *)dlsym(library, "cuGraphDestroy");
	CUdeviceptr memory, other;
	CUstream stream;
	void *graph;

	(void)d;
	(void)arg;
	cuda = gpu_use(0);
	memory = alloc(N, 0);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_must(begin(stream, CUDA_CAPTURE_MODE_GLOBAL));
	must(!tl_cuda_alloc(0, 0, NULL));
	give_back(memory, N, 0, stream);
	must(strstr(tl_last_error(), "0 bytes")); /* the capture is no failure of the caller's */
	other = alloc(N, 0);
	give_back(other, N, 0, NULL);
	eventually(!is_there(other)); /* that is not delayed */
	must(is_there(memory));
	gpu_must(end(stream, &graph));
	gpu_must(destroy(graph));
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	gpu_must(cuda->stream_destroy(stream));
	dlclose(library);
	return 0;
}

GPU_TEST(a_free_does_not_spoil_a_capture)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, frees_while_captured, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- What cannot be had ---- */

static void must_not_be(size_t size, int device, const char *words)
{
	must(!tl_cuda_alloc(size, device, NULL));
	if (!strstr(tl_last_error(), words))
		fprintf(stderr, "not '%s' in: %s\n", words, tl_last_error());
	must(strstr(tl_last_error(), words));
}

static int asks_for_too_much(const struct test_daemon *d, void *arg)
{
	CUdeviceptr memory;

	(void)d;
	(void)arg;
	cuda = gpu_use(0);
	must_not_be(0, 0, "0 bytes");
	must_not_be(SIZE_MAX, 0, "2^63");
	must_not_be(SMALL, 99, "99");
	must_not_be(SMALL, -1, "-1");
	memory = alloc(FULL, 0);
	must_not_be(1, 0, "allocating 2097152 bytes");
	tl_cuda_free(NULL, FULL, 0, NULL);
	tl_cuda_free((void *)(uintptr_t)memory, FULL, 99, NULL);
	must(strstr(tl_last_error(), "allocating")); /* a free leaves the text */
	give_back(memory, FULL, 0, NULL);
	give_back(alloc(FULL, 0), FULL, 0, NULL);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	return 0;
}

GPU_TEST(what_cannot_be_had_is_refused_with_the_reason)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	must_be(td_run_client(&g.d, asks_for_too_much, NULL), 0);
	gpu_nothing_left(&g);
}

static int asks_without_virtual_memory(const struct test_daemon *d, void *arg)
{
	(void)d;
	(void)arg;
	cuda = gpu_use(0);
	must_not_be(SMALL, 0, "tensorlease doctor");
	tl_cuda_free((void *)(uintptr_t)4096, SMALL, 0, NULL);
	return 0;
}

GPU_TEST(a_driver_without_virtual_memory_is_named)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_NO_VMM", "1");
	must_be(td_run_client(&g.d, asks_without_virtual_memory, NULL), 0);
	gpu_nothing_left(&g);
}

static int frees_in_a_child(const struct test_daemon *d, void *arg)
{
	CUdeviceptr memory;
	int status;
	pid_t pid;

	(void)arg;
	cuda = gpu_use(0);
	memory = alloc(N, 0);
	gpu_fill(memory, 7, N, CUDA_STREAM_LEGACY);
	pid = fork();
	must(pid >= 0);
	if (!pid) { /* nobody has made a client: the handlers of fork() are there all the same */
		give_back(memory, N, 0, NULL);
		if (tl_cuda_alloc(N, 0, NULL))
			_exit(1);
		tl_close(td_connect(d));
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	must_be(gpu_read(memory, N, CUDA_STREAM_LEGACY), 7);
	give_back(memory, N, 0, NULL);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	return 0;
}

GPU_TEST(a_forked_child_frees_nothing)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, frees_in_a_child, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
