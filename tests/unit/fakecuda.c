/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver keeps the rules that it is there to enforce: legacy memory, processes, devices,
 * pointers. */
#include <dlfcn.h>

#include "tests/unit/fakecuda_fixture.h"

/* ---- Legacy memory ---- */

static int share_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = export(cu, 0, SIZE, 0x11), q;

	(void)d, (void)arg;
	must_be(cu->ipc_open_mem_handle(&q, shared->memory[0], 1), CUDA_E_INVALID_CONTEXT);
	parent_tell(1);
	parent_await();
	must_be(gpu_read(p, SIZE, NULL), 0x22);
	gpu_must(cu->mem_free(p));
	must_be(cu->mem_free(p), CUDA_E_INVALID_VALUE);
	return 0;
}

static int share_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUresult (*ctx_create)(CUcontext *, unsigned, CUdevice);
	CUdeviceptr p, q, base;
	CUcontext second;
	size_t size;

	(void)d, (void)arg;
	must_be(cu->ipc_open_mem_handle(&p, shared->memory[0], 0), CUDA_E_INVALID_VALUE);
	must_be(cu->ipc_open_mem_handle(&p, shared->memory[0], 3), CUDA_E_INVALID_VALUE);
	p = import(cu, 0);
	must_be(gpu_live(FAKE_IMPORT), 1);
	q = import(cu, 0);
	must_be(q, p);
	must_be(gpu_live(FAKE_IMPORT), 1);
	gpu_must(cu->mem_get_address_range(&base, &size, p + 77));
	must_be(base, p);
	must_be(size, SIZE);
	must_be(gpu_read(p, SIZE, NULL), 0x11);
	must_be(cu->mem_free(p), CUDA_E_INVALID_VALUE);
	must_be(cu->ipc_get_mem_handle(&shared->memory[1], p), CUDA_E_INVALID_VALUE);

	*(void **)&ctx_create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxCreate_v2");
	gpu_must(ctx_create(&second, 0, 0));
	must_be(cu->ipc_open_mem_handle(&q, shared->memory[0], 1), CUDA_E_INVALID_HANDLE);
	gpu_must(cu->ctx_pop(NULL));

	gpu_fill(p, 0x22, SIZE, CUDA_STREAM_PER_THREAD);
	gpu_must(cu->ctx_synchronize());
	gpu_must(cu->ipc_close_mem_handle(p));
	must_be(gpu_read(p, SIZE, NULL), 0x22);
	must_be(cu->ipc_close_mem_handle(p + 1), CUDA_E_INVALID_VALUE);
	gpu_must(cu->ipc_close_mem_handle(p));
	must_be(cu->ipc_close_mem_handle(p), CUDA_E_INVALID_VALUE);
	must_be(cu->memset_d8(p, 0, 1), CUDA_E_INVALID_VALUE);
	return 0;
}

RULE(two_processes_share_legacy_memory)
{
	run_two(share_out, share_in);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
}

static int neighbours_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = export(cu, 0, 4096, 0x31), q = export(cu, 1, 4096, 0x32), base;
	size_t size;

	(void)d, (void)arg;
	must_be(q, p + 4096);
	gpu_must(cu->mem_get_address_range(&base, &size, q + 4095));
	must_be(base, q);
	must_be(size, 4096);
	gpu_must(cu->ipc_get_mem_handle(&shared->memory[1], q + 100)); /* that of the allocation */
	parent_tell(1);
	parent_await();
	return 0;
}

static int neighbours_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr q = import(cu, 1), base, p;
	size_t size;

	(void)d, (void)arg;
	gpu_must(cu->mem_get_address_range(&base, &size, q));
	must_be(base, q);
	must_be(size, 4096);
	must_be(gpu_read(q, 4096, NULL), 0x32);
	must_be(*(const unsigned char *)(uintptr_t)(q - 4096), 0x31); /* exposed, though not opened
								       */
	p = import(cu, 0);
	must_be(p, q - 4096); /* one mapping of the block */
	gpu_must(cu->ipc_close_mem_handle(q));
	must_be(gpu_read(p, 4096, NULL), 0x31);
	gpu_must(cu->ipc_close_mem_handle(p));
	return 0;
}

RULE(small_allocations_share_a_block)
{
	run_two(neighbours_out, neighbours_in);
}

static int reuse_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	unsigned long long id[2];
	CUdeviceptr p, q;

	(void)d, (void)arg;
	for (size_t size = SIZE; size <= 4 * SIZE; size *= 4) {
		p = export(cu, 0, size, 0x41);
		gpu_must(cu->pointer_get_attribute(&id[0], CUDA_POINTER_BUFFER_ID, p));
		gpu_must(cu->mem_free(p));
		q = export(cu, 1, size, 0x42);
		gpu_must(cu->pointer_get_attribute(&id[1], CUDA_POINTER_BUFFER_ID, q));
		must_be(q, p);
		must(id[0] != id[1]);
		must(memcmp(&shared->memory[0], &shared->memory[1], sizeof(shared->memory[0])) !=
		     0);
	}
	parent_tell(1);
	parent_await();
	return 0;
}

static int reuse_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p, q;

	(void)d, (void)arg;
	must_be(cu->ipc_open_mem_handle(&p, shared->memory[0], 1), CUDA_E_INVALID_VALUE);
	p = import(cu, 1);
	must_be(gpu_read(p, 4 * SIZE, NULL), 0x42);
	gpu_must(cu->ipc_close_mem_handle(p));
	q = import(cu, 1);
	must_be(q, p); /* a closed address comes back */
	return 0;
}

RULE(an_address_used_again_has_another_handle)
{
	run_two(reuse_out, reuse_in);
}

static int early_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = export(cu, 0, SIZE, 0x51);

	(void)d, (void)arg;
	parent_tell(1);
	parent_await();
	gpu_must(cu->mem_free(p));
	parent_tell(2);
	parent_await();
	return 0;
}

static int early_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = import(cu, 0);

	(void)d, (void)arg;
	must_be(gpu_read(p, SIZE, NULL), 0x51);
	parent_tell(1);
	parent_await();
	must_be(gpu_read(p, SIZE, NULL), FAKE_POISON);
	gpu_must(cu->ipc_close_mem_handle(p));
	return 0;
}

RULE(memory_freed_while_open_is_poisoned_and_counted)
{
	struct test_child e = child_start(NULL, early_out, NULL), i;

	child_await(&e);
	i = child_start(NULL, early_in, NULL);
	child_await(&i);
	child_go(&e);
	child_await(&e);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 1);
	child_go(&i);
	child_must_succeed(&i);
	child_go(&e);
	child_must_succeed(&e);
}

RULE(a_killed_owner_leaves_poison_and_nothing_alive)
{
	struct test_child e = child_start(NULL, early_out, NULL), i;

	child_await(&e);
	i = child_start(NULL, early_in, NULL);
	child_await(&i);
	must_be(gpu_live(FAKE_ALLOCATION), 1);
	child_kill(&e);
	child_go(&i); /* notices by itself */
	child_must_succeed(&i);
	must_be(gpu_violations(FAKE_ORPHANED), 1);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_live_all(), 0);
}

RULE(a_killed_importer_is_no_longer_an_importer)
{
	struct test_child e = child_start(NULL, early_out, NULL), i;

	child_await(&e);
	i = child_start(NULL, early_in, NULL);
	child_await(&i);
	child_kill(&i);
	must_be(gpu_live(FAKE_IMPORT), 0);
	child_go(&e);
	child_await(&e);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	child_go(&e);
	child_must_succeed(&e);
	must_be(gpu_live_all(), 0);
}

static int same_pid_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu;
	CUdeviceptr p;

	(void)d, (void)arg;
	cu = gpu_use(0);
	must_be(cu->ipc_open_mem_handle(&p, shared->memory[0], 1), CUDA_E_INVALID_CONTEXT);
	unsetenv("FAKECUDA_PID");
	gpu_must(cu->ipc_open_mem_handle(&p, shared->memory[0], 1));
	gpu_must(cu->ipc_close_mem_handle(p));
	memset(&shared->memory[0], 'x', 64);
	must_be(cu->ipc_open_mem_handle(&p, shared->memory[0], 1), CUDA_E_INVALID_VALUE);
	return 0;
}

static int stays_out(const struct test_daemon *d, void *arg)
{
	(void)d, (void)arg;
	export(gpu_use(0), 0, SIZE, 0x61);
	parent_tell(1);
	parent_await();
	return 0;
}

RULE(a_process_of_the_same_pid_cannot_open_it)
{
	gpu_setenv("FAKECUDA_PID", "1"); /* both are the first in a namespace of their own */
	run_two(stays_out, same_pid_in);
}

static int not_legacy(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	struct cuda_ipc_handle handle;
	CUdeviceptr p;
	char here;

	(void)d, (void)arg;
	gpu_must(cu->mem_alloc_managed(&p, SIZE, CUDA_MEM_ATTACH_GLOBAL));
	must_be(cu->ipc_get_mem_handle(&handle, p), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_alloc_async(&p, SIZE, CUDA_STREAM_LEGACY));
	must_be(cu->ipc_get_mem_handle(&handle, p), CUDA_E_INVALID_VALUE);
	must_be(cu->ipc_get_mem_handle(&handle, (uintptr_t)&here), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_alloc(&p, SIZE));
	setenv("FAKECUDA_NO_LEGACY", "1", 1);
	must_be(cu->ipc_get_mem_handle(&handle, p), CUDA_E_NOT_SUPPORTED);
	unsetenv("FAKECUDA_NO_LEGACY");
	gpu_must(cu->ipc_get_mem_handle(&handle, p));
	return 0;
}

RULE(other_memory_has_no_legacy_handle)
{
	run_one(not_legacy);
}

/* ---- Processes, devices, pointers ---- */

static int after_fork(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p;
	int status, n;
	pid_t pid;

	(void)d, (void)arg;
	gpu_must(cu->mem_alloc(&p, SIZE));
	pid = fork();
	if (pid == 0)
		_exit(cu->mem_alloc(&p, 1) == CUDA_E_NOT_INITIALIZED &&
				      cu->init(0) == CUDA_E_NOT_INITIALIZED &&
				      cu->device_get_count(&n) == CUDA_E_NOT_INITIALIZED
			      ? 0
			      : 1);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	gpu_must(cu->mem_free(p));
	return 0;
}

RULE(every_call_after_fork_fails)
{
	run_one(after_fork);
}

static int failures(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	size_t space, total;
	CUdeviceptr p, q;
	CUcontext context;

	(void)d, (void)arg;
	gpu_must(cu->mem_alloc(&p, SIZE));
	must_be(cu->mem_alloc(&q, SIZE), 46);
	gpu_must(cu->mem_alloc(&q, SIZE));
	must_be(cu->mem_free(q), 719);
	gpu_must(cu->mem_free(q));
	gpu_must(cu->mem_get_info(&space, &total));
	must_be(total, 4 * SIZE);
	must_be(space, 3 * SIZE);
	must_be(cu->mem_alloc(&q, 3 * SIZE + 1), CUDA_E_OUT_OF_MEMORY);
	gpu_must(cu->mem_alloc(&q, 3 * SIZE));
	gpu_must(cu->ctx_pop(&context));
	must_be(cu->mem_alloc(&q, 1), CUDA_E_INVALID_CONTEXT);
	gpu_must(cu->ctx_push(context));
	gpu_must(cu->primary_ctx_release(0)); /* the last: all that was in it goes */
	must_be(gpu_live_all(), 0);
	must_be(cu->mem_free(q), CUDA_E_CONTEXT_IS_DESTROYED);
	return 0;
}

RULE(calls_fail_as_the_environment_says)
{
	gpu_setenv("FAKECUDA_FAIL", "cuMemAlloc:2:46,cuMemFree:1:719");
	gpu_setenv("FAKECUDA_MEMORY", "4194304");
	run_one(failures);
}

static int visible(const struct test_daemon *d, void *arg)
{
	static const char *const lists[] = {
		"1", "0,1,2", "2,0", "GPU-fb4e,0", "1,7,0", "GPU-f,0"
	};
	static const int expected[][3] = { { 1, -1, -1 }, { 0, 1, 2 },	 { 2, 0, -1 },
					   { 1, 0, -1 },  { 1, -1, -1 }, { -1, -1, -1 } };
	const int n = *(int *)arg;
	const struct cuda_driver *cu;
	struct cuda_uuid uuid;
	int count = 0;

	(void)d;
	setenv("CUDA_VISIBLE_DEVICES", lists[n], 1);
	cu = cuda_driver_get(NULL);
	if (!cu) {
		must_be(expected[n][0], -1);
		return 0;
	}
	gpu_must(cu->device_get_count(&count));
	must_be(count, 1 + (expected[n][1] >= 0) + (expected[n][2] >= 0));
	for (int i = 0; i < count; i++) {
		gpu_must(cu->device_get_uuid(&uuid, i));
		must_be(uuid.bytes[15], expected[n][i]);
	}
	return 0;
}

RULE(visible_devices_reorder_the_ordinals)
{
	gpu_setenv("FAKECUDA_DEVICES", "3");
	for (int i = 0; i < 6; i++)
		must_be(td_run_client(NULL, visible, &i), 0);
}

static int other_device_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu;
	CUdeviceptr p;
	int device;

	(void)d, (void)arg;
	setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
	cu = gpu_use(0);
	p = import(cu, 0); /* by peer access */
	gpu_must(cu->pointer_get_attribute(&device, CUDA_POINTER_DEVICE_ORDINAL, p));
	must_be(device, 1);
	must_be(gpu_read(p, SIZE, NULL), 0x61);
	return 0;
}

static int hidden_device_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu;
	CUdeviceptr p;

	(void)d, (void)arg;
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	cu = gpu_use(0);
	must_be(cu->ipc_open_mem_handle(&p, shared->memory[0], 1), CUDA_E_INVALID_DEVICE);
	return 0;
}

RULE(memory_is_on_the_device_it_was_made_on)
{
	run_two(stays_out, other_device_in);
	run_two(stays_out, hidden_device_in);
}

static int pointers(const struct test_daemon *d, void *arg)
{
	int which[] = { CUDA_POINTER_CONTEXT,	     CUDA_POINTER_MEMORY_TYPE,
			CUDA_POINTER_DEVICE_ORDINAL, CUDA_POINTER_LEGACY_IPC_CAPABLE,
			CUDA_POINTER_IS_MANAGED,     CUDA_POINTER_RANGE_START,
			CUDA_POINTER_RANGE_SIZE,     CUDA_POINTER_ALLOWED_HANDLE_TYPES,
			CUDA_POINTER_ACCESS_FLAGS };
	const struct cuda_driver *cu = gpu_use(1);
	unsigned type = 0, capable = 0, managed = 0;
	unsigned long long types = 9, access = 9;
	CUdeviceptr p, start = 0;
	CUcontext context, mine;
	int device = -1;
	size_t size = 0;
	void *values[] = { &context, &type, &device, &capable, &managed,
			   &start,   &size, &types,  &access };

	(void)d, (void)arg;
	gpu_must(cu->ctx_get_current(&mine));
	gpu_must(cu->mem_alloc(&p, 3 * SIZE));
	gpu_must(cu->pointer_get_attributes(9, which, values, p + 5));
	must(context == mine);
	must_be(type, CUDA_MEMORY_DEVICE);
	must_be(device, 1);
	must_be(capable, 1);
	must_be(managed, 0);
	must_be(start, p);
	must_be(size, 3 * SIZE);
	must_be(types, 0);
	must_be(access, CUDA_ACCESS_READ_WRITE);
	capable = 1;
	gpu_must(cu->pointer_get_attributes(9, which, values, (uintptr_t)&device));
	must(!context);
	must_be(type, 0);
	must_be(capable, 0);
	must_be(start, 0);
	must_be(cu->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (uintptr_t)&device),
		CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_free(p));
	must_be(cu->mem_get_address_range(&start, &size, p), CUDA_E_NOT_FOUND);
	return 0;
}

RULE(pointers_say_what_they_are)
{
	run_one(pointers);
}

int main(int argc, char **argv)
{
	(void)argc;
	return RUN_RULES(argv);
}
