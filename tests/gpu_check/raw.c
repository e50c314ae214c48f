/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges tensors between the library and programs that make CUDA's IPC calls themselves: the
 * driver's, and cudaMalloc() and cudaIpc* of a libcudart, if there is one ($GPU_CHECK_CUDART, or
 * what the loader finds). Their handles are the same bytes.
 */
#include "tests/gpu_check/check.h"

#include <dlfcn.h>

enum { N = 8 << 20, VALUE = 0x3c };

/* cudaIpc* and the functions that go with it, which take handles by value. Results are 0 or an
 * error of that library. */
struct runtime {
	int (*malloc)(void **p, size_t size);
	int (*memset)(void *p, int byte, size_t size);
	int (*memcpy)(void *to, const void *from, size_t size, int kind);
	int (*synchronize)(void);
	int (*get_handle)(struct cuda_ipc_handle *handle, void *p);
	int (*open_handle)(void **p, struct cuda_ipc_handle handle, unsigned flags);
	int (*close_handle)(void *p);
};

static bool runtime_load(struct runtime *rt)
{
	static const char *const names[] = { "libcudart.so.13", "libcudart.so.12",
					     "libcudart.so.11.0", "libcudart.so" };
	const char *asked = getenv("GPU_CHECK_CUDART");
	void *lib;

	*rt = (struct runtime){ 0 };
	lib = asked && *asked ? dlopen(asked, RTLD_NOW) : NULL;

	for (int i = 0; !lib && i < 4; i++)
		lib = dlopen(names[i], RTLD_NOW);
	if (!lib)
		return false;
	*(void **)&rt->malloc = dlsym(lib, "cudaMalloc");
	*(void **)&rt->memset = dlsym(lib, "cudaMemset");
	*(void **)&rt->memcpy = dlsym(lib, "cudaMemcpy");
	*(void **)&rt->synchronize = dlsym(lib, "cudaDeviceSynchronize");
	*(void **)&rt->get_handle = dlsym(lib, "cudaIpcGetMemHandle");
	*(void **)&rt->open_handle = dlsym(lib, "cudaIpcOpenMemHandle");
	*(void **)&rt->close_handle = dlsym(lib, "cudaIpcCloseMemHandle");
	return rt->malloc && rt->memset && rt->memcpy && rt->synchronize && rt->get_handle &&
	       rt->open_handle && rt->close_handle;
}

/* The calls that a side makes. */
enum side { LIBRARY, DRIVER, RUNTIME };

static bool have_runtime(void)
{
	struct runtime rt;

	return runtime_load(&rt);
}

/* ---- Producers ---- */

static void freed(void *context)
{
	atomic_fetch_add((_Atomic int *)context, 1);
}

static int produce(const struct test_daemon *d, void *arg)
{
	const enum side side = *(enum side *)arg;
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_ipc_handle h = { .size = sizeof(h), .allocation_size = N };
	tl_client *client = td_connect(d);
	static _Atomic int gone;
	struct cuda_ipc_handle handle;
	struct gpu_foreign f;
	struct runtime rt;
	void *p = NULL;

	cuda = gpu_use(0);
	gpu_must(cuda->device_get_uuid((struct cuda_uuid *)h.device_uuid, 0));
	if (side == RUNTIME) {
		must(runtime_load(&rt));
		must_be(rt.malloc(&p, N), 0);
		must_be(rt.memset(p, VALUE, N), 0);
		must_be(rt.synchronize(), 0);
		must_be(rt.get_handle(&handle, p), 0);
	} else {
		p = (void *)(uintptr_t)gpu_alloc(N);
		gpu_fill((CUdeviceptr)(uintptr_t)p, VALUE, N, CUDA_STREAM_LEGACY);
		gpu_must(cuda->ctx_synchronize());
		gpu_must(cuda->ipc_get_mem_handle(&handle, (CUdeviceptr)(uintptr_t)p));
	}
	memcpy(h.memory, handle.bytes, sizeof(h.memory));
	if (side == LIBRARY) {
		gpu_foreign_init(&f, (CUdeviceptr)(uintptr_t)p, N, 0);
		must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	} else {
		must_be(tl_publish_ipc_handle(client, "t", &h, &spec, NULL, freed, (void *)&gone,
					      NULL),
			0);
	}
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	if (side == LIBRARY)
		eventually(atomic_load(&f.deleted));
	else
		eventually(atomic_load(&gone));
	tl_close(client);
	return 0;
}

/* ---- Consumers ---- */

static int consume(const struct test_daemon *d, void *arg)
{
	const enum side side = *(enum side *)arg;
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	tl_ipc_handle h = { .size = sizeof(h) };
	tl_client *client = td_connect(d);
	struct cuda_ipc_handle handle;
	DLManagedTensorVersioned *t;
	CUdeviceptr p = 0;
	struct runtime rt;
	CUevent event;

	cuda = gpu_use(0);
	if (side == LIBRARY) {
		t = gpu_get(client, "t", TL_STREAM_LEGACY);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), VALUE);
		drop(t);
		tl_close(client);
		return 0;
	}
	must_be(tl_get_ipc_handle(client, "t", &o, &h, &t), 0);
	memcpy(handle.bytes, h.memory, sizeof(h.memory));
	if (h.has_event) {
		struct cuda_ipc_handle of_event;

		memcpy(of_event.bytes, h.event, sizeof(h.event));
		gpu_must(cuda->ipc_open_event_handle(&event, of_event));
		gpu_must(cuda->stream_wait_event(CUDA_STREAM_LEGACY, event, 0));
	}
	if (side == RUNTIME) {
		void *at;
		unsigned char *bytes = malloc(N);
		const int device_to_host = 2;

		must(runtime_load(&rt));
		must_be(rt.open_handle(&at, handle, 1), 0);
		must_be(rt.memcpy(bytes, (char *)at + h.offset, N, device_to_host), 0);
		for (int i = 0; i < N; i++)
			must_be(bytes[i], VALUE);
		must_be(rt.close_handle(at), 0);
		free(bytes);
	} else {
		gpu_must(cuda->ipc_open_mem_handle(&p, handle, 1));
		must_be(gpu_read(p + h.offset, N, CUDA_STREAM_LEGACY), VALUE);
		gpu_must(cuda->ipc_close_mem_handle(p));
	}
	drop(t);
	tl_close(client);
	return 0;
}

static void pair(enum side from, enum side to)
{
	static const char *const names[] = { "libtensorlease", "cuIpc*", "cudaIpc*" };
	char name[80];

	snprintf(name, sizeof(name), "%s to %s", names[from], names[to]);
	if (from == RUNTIME || to == RUNTIME) {
		const char *why = getenv("GPU_CHECK_FAKE")
					  ? "libcudart does not work with the fake driver"
				  : !have_runtime() ? "there is no libcudart; name one in "
						      "$GPU_CHECK_CUDART"
						    : NULL;

		if (why)
			row("skip", name, "%s", why);
		SKIP_UNLESS(!why, why);
	}
	{
		cleanup_td struct test_daemon d = td_start();
		struct test_child p = child_start_ready(&d, produce, &from);

		must_be(td_run_client(&d, consume, &to), 0);
		child_finish(&p);
	}
	row("ok", name, "8 MiB, all bytes are right; freed afterwards");
}

#define PAIR(from, to)                                                                             \
	GPU_TEST(from##_to_##to)                                                                   \
	{                                                                                          \
		pair(from, to);                                                                    \
	}
PAIR(LIBRARY, LIBRARY)
PAIR(LIBRARY, DRIVER)
PAIR(LIBRARY, RUNTIME)
PAIR(DRIVER, LIBRARY)
PAIR(DRIVER, DRIVER)
PAIR(DRIVER, RUNTIME)
PAIR(RUNTIME, LIBRARY)
PAIR(RUNTIME, DRIVER)

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
