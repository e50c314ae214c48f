/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver keeps the rules that it is there to enforce: virtual memory management, pools. */
#include "tests/unit/fakecuda_fixture.h"

enum { GRANULE = 2 << 20 };

static void fd_send(int fd)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte = 'f';
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };

	control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
					   .cmsg_type = SCM_RIGHTS,
					   .cmsg_len = CMSG_LEN(sizeof(int)) };
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	must_be(sendmsg(shared->sockets[0], &m, 0), 1);
}

static int fd_receive(void)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	int fd;

	must_be(recvmsg(shared->sockets[1], &m, MSG_CMSG_CLOEXEC), 1);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

/* ---- Virtual memory management ---- */

static const struct cuda_allocation_prop prop = {
	.type = CUDA_ALLOCATION_PINNED,
	.handle_types = CUDA_HANDLE_POSIX_FD,
	.location = { .type = CUDA_LOCATION_DEVICE },
};

static CUdeviceptr vmm_map(const struct cuda_driver *cu, cuda_vmm_handle handle, size_t size,
			   int flags)
{
	const struct cuda_access access = { .location = prop.location, .flags = flags };
	CUdeviceptr p;

	gpu_must(cu->mem_address_reserve(&p, size, 0, 0, 0));
	gpu_must(cu->mem_map(p, size, 0, handle, 0));
	if (flags)
		gpu_must(cu->mem_set_access(p, size, &access, 1));
	return p;
}

static int vmm_rules(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	struct cuda_allocation_prop got;
	cuda_vmm_handle handle, again;
	struct cuda_ipc_handle legacy;
	CUdeviceptr p, base;
	size_t granularity, size;

	(void)d, (void)arg;
	gpu_must(cu->mem_get_allocation_granularity(&granularity, &prop, CUDA_GRANULARITY_MINIMUM));
	must_be(granularity, GRANULE);
	must_be(cu->mem_create(&handle, GRANULE + 4096, &prop, 0), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_create(&handle, 2 * GRANULE, &prop, 0));
	must_be(cu->mem_address_reserve(&p, 4096, 0, 0, 0), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_address_reserve(&p, 4 * GRANULE, 0, 0, 0));
	must_be(cu->mem_map(p, 3 * GRANULE, 0, handle, 0), CUDA_E_INVALID_VALUE);
	must_be(cu->mem_map(p, GRANULE, 2 * GRANULE, handle, 0), CUDA_E_INVALID_VALUE);
	must_be(cu->mem_map(p + 4096, GRANULE, 0, handle, 0), CUDA_E_INVALID_VALUE);
	must_be(cu->mem_map(p + 4 * GRANULE, GRANULE, 0, handle, 0), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_map(p + GRANULE, 2 * GRANULE, 0, handle, 0));
	must_be(cu->mem_map(p + GRANULE, GRANULE, 0, handle, 0), CUDA_E_INVALID_VALUE);
	must_be(cu->ipc_get_mem_handle(&legacy, p + GRANULE), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_get_address_range(&base, &size, p + GRANULE + 5));
	must_be(base, p + GRANULE);
	must_be(size, 2 * GRANULE);
	gpu_must(cu->mem_release(handle)); /* the mapping keeps it */
	must_be(cu->mem_release(handle), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_retain_handle(&again, (void *)(uintptr_t)(p + GRANULE + 7)));
	gpu_must(cu->mem_get_allocation_properties(&got, again));
	must_be(got.handle_types, CUDA_HANDLE_POSIX_FD);
	gpu_must(cu->mem_release(again));
	must_be(cu->mem_unmap(p + GRANULE, GRANULE), CUDA_E_INVALID_VALUE);
	must_be(cu->mem_address_free(p, 4 * GRANULE), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_unmap(p + GRANULE, 2 * GRANULE));
	gpu_must(cu->mem_address_free(p, 4 * GRANULE));
	must_be(gpu_live_all(), 1); /* the context */
	must_be(cu->mem_import(&handle, (void *)0, CUDA_HANDLE_POSIX_FD), CUDA_E_UNKNOWN);
	must_be(cu->mem_import(&handle, (void *)(intptr_t)999, CUDA_HANDLE_POSIX_FD),
		CUDA_E_INVALID_VALUE);
	return 0;
}

RULE(virtual_memory_keeps_to_its_granules)
{
	run_one(vmm_rules);
}

/* Exits with 0 if the write did not fault. */
static int vmm_write(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	cuda_vmm_handle handle;
	CUdeviceptr p;

	(void)d;
	signal(SIGSEGV, SIG_DFL); /* no report of a sanitizer */
	gpu_must(cu->mem_create(&handle, GRANULE, &prop, 0));
	p = vmm_map(cu, handle, GRANULE, *(int *)arg);
	if (*(int *)arg == CUDA_ACCESS_READ)
		must_be(gpu_read(p, GRANULE, NULL), 0);
	gpu_fill(p, 1, GRANULE, NULL);
	gpu_must(cu->ctx_synchronize());
	return 0;
}

RULE(memory_without_access_faults)
{
	int flags[] = { CUDA_ACCESS_NONE, CUDA_ACCESS_READ, CUDA_ACCESS_READ_WRITE };

	for (int i = 0; i < 3; i++) {
		int status = td_run_client(NULL, vmm_write, &flags[i]);

		if (flags[i] == CUDA_ACCESS_READ_WRITE)
			must_be(status, 0);
		else
			must(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	}
	must_be(gpu_live_all(), 0);
}

static int vmm_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	cuda_vmm_handle handle;
	CUdeviceptr p;
	int fd;

	(void)d, (void)arg;
	gpu_must(cu->mem_create(&handle, GRANULE, &prop, 0));
	p = vmm_map(cu, handle, GRANULE, CUDA_ACCESS_READ_WRITE);
	must_be(gpu_read(p, GRANULE, NULL), 0);
	gpu_fill(p, 0x81, GRANULE, NULL);
	gpu_must(cu->ctx_synchronize());
	gpu_must(cu->mem_export(&fd, handle, CUDA_HANDLE_POSIX_FD, 0));
	fd_send(fd);
	close(fd);
	parent_tell(1);
	parent_await();
	return 0;
}

static int vmm_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	cuda_vmm_handle handle;
	int fd = fd_receive();
	CUdeviceptr p;

	(void)d, (void)arg;
	if (arg) { /* nobody has kept the GPU open */
		must_be(cu->mem_import(&handle, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD),
			CUDA_E_INVALID_VALUE);
		return 0;
	}
	gpu_must(cu->mem_import(&handle, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD));
	close(fd);
	p = vmm_map(cu, handle, GRANULE, CUDA_ACCESS_READ);
	gpu_must(cu->mem_release(handle));
	must_be(gpu_read(p, GRANULE, NULL), 0x81);
	gpu_must(cu->mem_unmap(p, GRANULE));
	gpu_must(cu->mem_address_free(p, GRANULE));
	must_be(gpu_live_all(), 1);
	return 0;
}

static void maker_is_killed(void *nobody_keeps_the_gpu)
{
	struct test_child e = child_start(NULL, vmm_out, NULL), i;

	child_await(&e);
	child_kill(&e);
	must_be(gpu_live_all(), 0);
	i = child_start(NULL, vmm_in, nobody_keeps_the_gpu);
	child_must_succeed(&i);
	must_be(gpu_live_all(), 0);
}

RULE(a_descriptor_keeps_virtual_memory_after_its_maker_was_killed)
{
	gpu_setenv("FAKECUDA_PERSISTENCE", "1");
	maker_is_killed(NULL);
}

RULE(virtual_memory_goes_with_the_last_user_of_its_gpu)
{
	bool nobody_keeps_the_gpu = true;

	maker_is_killed(&nobody_keeps_the_gpu);
}

/* ---- Pools ---- */

static int pool_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_pool_props props = { .type = CUDA_ALLOCATION_PINNED,
					       .handle_types = CUDA_HANDLE_POSIX_FD,
					       .location.type = CUDA_LOCATION_DEVICE };
	const struct cuda_driver *cu = gpu_use(0);
	CUmemoryPool pool, of;
	CUdeviceptr first, p;
	int fd;

	(void)d, (void)arg;
	gpu_must(cu->pool_create(&pool, &props));
	gpu_must(cu->mem_alloc_from_pool_async(&first, 1000, pool, CUDA_STREAM_LEGACY));
	gpu_must(cu->mem_alloc_from_pool_async(&p, SIZE, pool, CUDA_STREAM_LEGACY));
	gpu_must(cu->pointer_get_attribute(&of, CUDA_POINTER_POOL, p));
	must(of == pool);
	gpu_fill(p, 0x91, SIZE, CUDA_STREAM_LEGACY);
	gpu_must(cu->ctx_synchronize());
	gpu_must(cu->pool_export(&fd, pool, CUDA_HANDLE_POSIX_FD, 0));
	gpu_must(cu->pool_export_pointer(&shared->pool_pointer, p));
	fd_send(fd);
	close(fd);
	parent_tell(1);
	parent_await();
	gpu_must(cu->mem_free_async(p, CUDA_STREAM_LEGACY));
	must_be(cu->mem_free_async(p, CUDA_STREAM_LEGACY), CUDA_E_INVALID_VALUE);
	gpu_must(cu->pool_destroy(pool));
	must_be(cu->pool_destroy(pool), CUDA_E_INVALID_VALUE);
	must_be(gpu_live(FAKE_POOL), 1); /* there is an allocation left in it */
	gpu_must(cu->mem_free(first));
	must_be(gpu_live_all(), 1);
	return 0;
}

static int pool_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	int fd = fd_receive();
	CUmemoryPool pool, again;
	CUdeviceptr p, q;

	(void)d, (void)arg;
	gpu_must(cu->pool_import(&pool, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD, 0));
	gpu_must(cu->pool_import(&again, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD, 0));
	close(fd);
	for (int i = 0; i < 2; i++) { /* one address, which the first free ends */
		gpu_must(cu->pool_import_pointer(&p, pool, &shared->pool_pointer));
		gpu_must(cu->pool_import_pointer(&q, i ? pool : again, &shared->pool_pointer));
		must_be(q, p);
		gpu_must(cu->mem_free(q));
		must_be(cu->mem_free(p), CUDA_E_INVALID_VALUE);
	}
	gpu_must(cu->pool_destroy(again));
	gpu_must(cu->pool_import_pointer(&p, pool, &shared->pool_pointer));
	must_be(gpu_read(p, SIZE, NULL), 0x91);
	must_be(cu->mem_alloc_from_pool_async(&p, SIZE, pool, NULL), CUDA_E_INVALID_VALUE);
	gpu_must(cu->mem_free_async(p, NULL));
	gpu_must(cu->ctx_synchronize());
	gpu_must(cu->pool_destroy(pool));
	must_be(gpu_live(FAKE_POOL_IMPORT), 0);
	return 0;
}

RULE(two_processes_share_a_pool)
{
	run_two(pool_out, pool_in);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	return RUN_RULES(argv);
}
