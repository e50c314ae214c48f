/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what single calls of the driver return that the library and the fake driver count on.
 */
#include "tests/gpu_check/check.h"

enum { N = 4 << 20 };

static int legacy_facts(const struct test_daemon *d, void *arg)
{
	struct cuda_ipc_handle one, two;
	CUdeviceptr p, opened = 0;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	p = gpu_alloc(N);
	gpu_must(cuda->ipc_get_mem_handle(&one, p));
	row_result("one's own handle, opened", cuda->ipc_open_mem_handle(&opened, one, 1),
		   CUDA_E_INVALID_CONTEXT);
	row_result("a handle opened without LAZY_ENABLE_PEER_ACCESS",
		   cuda->ipc_open_mem_handle(&opened, one, 0), CUDA_E_INVALID_VALUE);
	row_result("closing what was not opened", cuda->ipc_close_mem_handle(p + N),
		   CUDA_E_INVALID_VALUE);
	gpu_must(cuda->mem_free(p));
	p = gpu_alloc(N);
	gpu_must(cuda->ipc_get_mem_handle(&two, p));
	row(memcmp(&one, &two, sizeof(one)) ? "ok" : "differs", "the handle of the next allocation",
	    "%s that of the freed one",
	    memcmp(&one, &two, sizeof(one)) ? "differs from" : "equals");
	gpu_must(cuda->mem_free(p));
	return 0;
}

static int vmm_facts(const struct test_daemon *d, void *arg)
{
	struct cuda_allocation_prop prop = { .type = CUDA_ALLOCATION_PINNED,
					     .handle_types = CUDA_HANDLE_POSIX_FD,
					     .location = { CUDA_LOCATION_DEVICE, 0 } };
	struct cuda_ipc_handle handle;
	struct vmm_block b;
	size_t granularity = 0;
	CUdeviceptr managed;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	if (!cuda->mem_create || vmm_make(&b, N)) {
		row("skip", "virtual memory management", "not on this GPU");
		return 0;
	}
	row_result("a legacy handle of VMM memory", cuda->ipc_get_mem_handle(&handle, b.at),
		   CUDA_E_INVALID_VALUE);
	gpu_must(cuda->mem_get_allocation_granularity(&granularity, &prop,
						      CUDA_GRANULARITY_MINIMUM));
	row(granularity == 2 << 20 ? "ok" : "differs", "granularity of VMM memory", "%zu KiB",
	    granularity >> 10);
	vmm_end(&b);
	if (cuda->mem_alloc_managed(&managed, N, CUDA_MEM_ATTACH_GLOBAL))
		return 0;
	row_result("a legacy handle of managed memory", cuda->ipc_get_mem_handle(&handle, managed),
		   CUDA_E_INVALID_VALUE);
	return 0;
}

static int fork_facts(const struct test_daemon *d, void *arg)
{
	CUdeviceptr p;
	int status;
	pid_t pid;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	p = gpu_alloc(N);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		row_result("any call in a forked child", cuda->mem_alloc(&p, N),
			   CUDA_E_NOT_INITIALIZED);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid);
	if (status)
		row("differs", "any call in a forked child", "it ended with wait status %#x",
		    status);
	return 0;
}

/* How many interprocess events can one process have? */
static int event_facts(const struct test_daemon *d, void *arg)
{
	CUresult r = CUDA_OK;
	CUevent event;
	int n = 0;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	while (n < 65536 && !r) {
		r = cuda->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING);
		n += !r;
	}
	row("info", "interprocess events in one process", "%d%s%s", n, r ? ", then " : " and more",
	    r ? cuda_error_text(r) : "");
	return 0;
}

struct neighbours {
	struct cuda_ipc_handle handle;
	CUdeviceptr a, b;
};

static int neighbour_owner(const struct test_daemon *d, void *arg)
{
	struct neighbours *n = arg;

	(void)d;
	cuda = gpu_use(0);
	n->a = gpu_alloc(1 << 16);
	n->b = gpu_alloc(1 << 16);
	gpu_must(cuda->ipc_get_mem_handle(&n->handle, n->a));
	pause_at(1);
	return 0;
}

/* Does a small export expose what else is in its block, and what does a second open of a handle
 * return? */
static int neighbour_reader(const struct test_daemon *d, void *arg)
{
	struct neighbours *n = arg;
	CUdeviceptr p = 0, again = 0, base = 0;
	size_t size = 0;

	(void)d;
	cuda = gpu_use(0);
	gpu_must(cuda->ipc_open_mem_handle(&p, n->handle, 1));
	gpu_must(cuda->mem_get_address_range(&base, &size, p));
	row("info", "64 KiB exported by cudaMalloc",
	    "opens %zu KiB; its neighbour lies %lld KiB away", size >> 10,
	    ((long long)n->b - (long long)n->a) / 1024);
	row_result("the same handle opened twice", cuda->ipc_open_mem_handle(&again, n->handle, 1),
		   CUDA_OK);
	row(again == p ? "ok" : "differs", "... its address", "%s",
	    again == p ? "the same" : "another");
	return 0;
}

#define FACTS(name)                                                                                \
	GPU_TEST(name##_are_told)                                                                  \
	{                                                                                          \
		must_be(td_run_client(NULL, name, NULL), 0);                                       \
	}
FACTS(legacy_facts)
FACTS(vmm_facts)
FACTS(fork_facts)
FACTS(event_facts)

GPU_TEST(neighbours_are_told)
{
	struct neighbours *n = shared_memory(sizeof(*n));
	struct test_child owner = child_start_ready(NULL, neighbour_owner, n);

	must_be(td_run_client(NULL, neighbour_reader, n), 0);
	child_finish(&owner);
	munmap(n, sizeof(*n));
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
