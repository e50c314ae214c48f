/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for the programs of `make gpu-check`. They find out rather than test: each answer is a
 * row, printed as "ROW", result, name and detail with tabs between, which tests/gpu_check/run
 * collects. Results are "ok", "differs" (from what this project is built on), "fail", "skip", and
 * "info" for what is only measured.
 */
#pragma once

#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/gpu/common.h"

__attribute__((format(printf, 3, 4))) static inline void row(const char *result, const char *name,
							     const char *format, ...)
{
	va_list args;

	printf("ROW\t%s\t%s\t", result, name);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* Prints whether a call returns what this project counts on. */
static inline void row_result(const char *name, CUresult result, CUresult expected)
{
	if (result == expected)
		row("ok", name, "%s", cuda_error_text(result));
	else
		row("differs", name, "%s; counted on was %d", cuda_error_text(result), expected);
}

/* Allocates memory that is shared with processes forked later. */
static inline void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(p != MAP_FAILED);
	return p;
}

/* Sends a descriptor over a pair of sockets that was made before the fork. */
static inline void fd_send(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	must_be(sendmsg(socket, &m, 0), 1);
}

static inline int fd_receive(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	int fd = -1;

	must_be(recvmsg(socket, &m, MSG_CMSG_CLOEXEC), 1);
	must(CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

/* Memory of cuMemCreate() that is mapped. */
struct vmm_block {
	cuda_vmm_handle handle;
	CUdeviceptr at;
	size_t size;
};

static inline CUresult vmm_map(struct vmm_block *b, int access)
{
	struct cuda_access a = { { CUDA_LOCATION_DEVICE, 0 }, access };
	CUresult r = cuda->mem_address_reserve(&b->at, b->size, 0, 0, 0);

	r = r ? r : cuda->mem_map(b->at, b->size, 0, b->handle, 0);
	return r ? r : cuda->mem_set_access(b->at, b->size, &a, 1);
}

static inline CUresult vmm_make(struct vmm_block *b, size_t size)
{
	struct cuda_allocation_prop prop = { .type = CUDA_ALLOCATION_PINNED,
					     .handle_types = CUDA_HANDLE_POSIX_FD,
					     .location = { CUDA_LOCATION_DEVICE, 0 } };
	CUresult r;

	b->size = size;
	r = cuda->mem_create(&b->handle, size, &prop, 0);
	return r ? r : vmm_map(b, CUDA_ACCESS_READ_WRITE);
}

static inline int vmm_export(const struct vmm_block *b)
{
	int fd = -1;

	gpu_must(cuda->mem_export(&fd, b->handle, CUDA_HANDLE_POSIX_FD, 0));
	return fd;
}

/* Imports and maps the memory of a descriptor, which stays open. */
static inline CUresult vmm_import(struct vmm_block *b, int fd, size_t size, int access)
{
	CUresult r = cuda->mem_import(&b->handle, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD);

	b->size = size;
	return r ? r : vmm_map(b, access);
}

static inline void vmm_end(struct vmm_block *b)
{
	gpu_must(cuda->mem_unmap(b->at, b->size));
	gpu_must(cuda->mem_address_free(b->at, b->size));
	gpu_must(cuda->mem_release(b->handle));
}

static inline size_t free_bytes(void)
{
	size_t left = 0, total = 0;

	gpu_must(cuda->mem_get_info(&left, &total));
	return left;
}
