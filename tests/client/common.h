/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the tests of the library: small tensors whose bytes tell who wrote them. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tests/harness/client.h"
#include "tests/harness/sleeper.h"

#define U8 ((DLDataType){ TL_DTYPE_UINT, 8, 1 })
#define MS 1000000LL

/* Publishes @n bytes of @value and returns the version. */
static inline uint64_t put_as(tl_client *client, const char *name, int value, size_t n,
			      const tl_put_options *options)
{
	unsigned char *data = malloc(n + 1);
	int64_t shape[1] = { (int64_t)n };
	DLTensor t = bytes_tensor(data, shape);
	uint64_t version = 0;

	must(data);
	memset(data, value, n);
	must_be(tl_put(client, name, &t, options, &version), 0);
	free(data);
	return version;
}

static inline uint64_t put_bytes(tl_client *client, const char *name, int value, size_t n)
{
	return put_as(client, name, value, n, NULL);
}

/* By the daemon, however often it is done. */
static inline uint64_t put_alone(tl_client *client, const char *name, int value, size_t n)
{
	return put_as(client, name, value, n,
		      &(tl_put_options){ .size = sizeof(tl_put_options), .ring = TL_RING_NONE });
}

/*
 * Equal publications count together for a ring if less than two seconds lie between two of them.
 * Without that the third need not begin one. @start is when the first began.
 */
static inline bool puts_were_slow(int64_t start)
{
	return now_ns() - start >= 2 * SECOND;
}

static inline DLManagedTensorVersioned *get(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_get(client, name, NULL, &t), 0);
	return t;
}

static inline void drop(DLManagedTensorVersioned *t)
{
	t->deleter(t);
}

static inline bool all_bytes(const DLManagedTensorVersioned *t, int value, size_t n)
{
	const unsigned char *p = t->dl_tensor.data;

	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return true;
}

/* Lets the process open no more descriptors. Returns the limit as it was. */
static inline struct rlimit forbid_descriptors(void)
{
	int free_fd = dup(STDIN_FILENO);
	struct rlimit all, few;

	close(free_fd);
	must_be(getrlimit(RLIMIT_NOFILE, &all), 0);
	few = (struct rlimit){ .rlim_cur = (rlim_t)free_fd, .rlim_max = all.rlim_max };
	must_be(setrlimit(RLIMIT_NOFILE, &few), 0);
	return all;
}

struct lease_count {
	uint32_t pid;
	uint64_t n;
};

static inline int count_leases_of(const tl_client_info *info, void *context)
{
	struct lease_count *count = context;

	if (!count->pid || info->pid == count->pid)
		count->n += info->leases;
	return 0;
}

/* How many leases that process holds according to the daemon, or all processes if @pid is 0. */
static inline uint64_t leases_of(tl_client *client, pid_t pid)
{
	struct lease_count count = { .pid = (uint32_t)pid };

	must_be(tl_list_clients(client, count_leases_of, &count), 0);
	return count.n;
}

static inline uint64_t file_offset_of(const void *address, uint64_t *inode)
{
	unsigned long start, end, offset, node;
	char line[512];
	FILE *f = fopen("/proc/self/maps", "re");
	uint64_t at = UINT64_MAX;

	must(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%lx %*s %lx %*s %lu", &start, &end, &offset, &node) == 4 &&
		    (unsigned long)address >= start && (unsigned long)address < end) {
			at = (unsigned long)address - start + offset;
			*inode = node;
		}
	fclose(f);
	must(at != UINT64_MAX);
	return at;
}

/* Do both lie in the same bytes of the same shared memory object? */
static inline bool same_memory(const void *a, const void *b)
{
	uint64_t inode_a = 0, inode_b = 0;

	return file_offset_of(a, &inode_a) == file_offset_of(b, &inode_b) && inode_a == inode_b;
}

/* How many of this process's mappings /proc tells of with that text. */
static inline unsigned mappings_with(const char *text)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	unsigned n = 0;

	must(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}

/* Of what daemons made, memfds and file systems included. */
static inline unsigned mapped_objects(void)
{
	return mappings_with("tensorlease-");
}

/* A thread that sleeps in a call. */
struct asleep {
	tl_client *client;
	_Atomic pid_t tid;
};

/* Until somebody publishes "later", which it returns. */
static inline void *wait_for_later(void *arg)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	DLManagedTensorVersioned *t = NULL;
	struct asleep *a = arg;

	atomic_store(&a->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_get(a->client, "later", &o, &t), 0);
	return t;
}
