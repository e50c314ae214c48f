/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fixture of the fake driver's tests. Exporter and importer are processes; handles go between
 * them in memory that all have mapped.
 */
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/harness/gpu.h"

enum { SIZE = 1 << 20 };

/* The children tell each other these values. */
static struct shared {
	struct cuda_ipc_handle memory[2], event;
	struct cuda_pool_pointer pool_pointer;
	CUdeviceptr pointer[2];
	int sockets[2];
} * shared;

static inline int setup(void **state)
{
	int r = gpu_setup(state);

	must_be(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, shared->sockets), 0);
	return r;
}

static inline int teardown(void **state)
{
	close(shared->sockets[0]);
	close(shared->sockets[1]);
	return gpu_teardown(state);
}

/* A GPU_TEST with two ends of a socket for descriptors. */
#define RULE(name) TEST_WITH(name, setup, teardown)

static inline CUdeviceptr export(const struct cuda_driver *cu, int i, size_t size, int byte)
{
	CUdeviceptr p;

	gpu_must(cu->mem_alloc(&p, size));
	gpu_must(cu->memset_d8(p, (unsigned char)byte, size));
	gpu_must(cu->ctx_synchronize());
	gpu_must(cu->ipc_get_mem_handle(&shared->memory[i], p));
	shared->pointer[i] = p;
	return p;
}

static inline CUdeviceptr import(const struct cuda_driver *cu, int i)
{
	CUdeviceptr p = 0;

	gpu_must(cu->ipc_open_mem_handle(&p, shared->memory[i], 1));
	return p;
}

/* Runs @exporter until it tells, then @importer to its end, then the exporter to its own. */
static inline void run_two(child_fn *exporter, child_fn *importer)
{
	struct test_child e = child_start(NULL, exporter, NULL), i;

	child_await(&e);
	i = child_start(NULL, importer, NULL);
	child_must_succeed(&i);
	child_go(&e);
	child_must_succeed(&e);
	must_be(gpu_live_all(), 0);
}

static inline void run_one(child_fn *fn)
{
	struct test_child c = child_start(NULL, fn, NULL);

	child_must_succeed(&c);
	must_be(gpu_live_all(), 0);
}

/* The main() of each. */
#define RUN_RULES(argv)                                                                            \
	(gpu_init(argv),                                                                           \
	 shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,  \
		       -1, 0),                                                                     \
	 must(shared != MAP_FAILED), suite_run())
