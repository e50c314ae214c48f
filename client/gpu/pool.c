/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/error.h"
#include "client/gpu/pool.h"
#include "client/gpu/threads.h"
#include "util/clock.h"
#include "util/fd.h"

struct cuda_pool {
	struct list link;
	struct cuda_device *device;
	unsigned life;	  /* device->life when it was imported */
	struct list uses; /* the last one ends the import */
	int fd;		  /* the producer's, which identifies the pool; -1 in a forked child */
	bool importing;	  /* other threads that want it wait for cuda_changed */
	bool usable;	  /* it is imported, and is not about to end */
	CUmemoryPool pool;
};

/*
 * A use of a pool's allocation. In a process the driver opens an allocation at one address, no
 * matter from which import of the pool, and keeps no count: the first free ends it for all uses. So
 * we count uses by address, and the last use frees the allocation.
 */
struct cuda_pool_use {
	struct list link;
	struct cuda_pool *pool;
	CUdeviceptr base; /* 0: it is not open yet; freed at the end */
	bool closing;	  /* other threads that want it wait for cuda_changed */
};

/* Under cuda_lock. The driver is called without that lock, so fork() also finds pools here that a
 * thread is importing or ending. */
static struct list pools = LIST_INIT(pools);
static unsigned frees; /* how many allocations were freed; under cuda_lock */

/* True if both are duplicates of one descriptor. No producer can fake that for another's pool.
 * Inodes do not help: all pools of a real driver have the same one. Also false if unknown. */
static bool is_same_file(int a, int b)
{
	enum { DUPFD_QUERY = 1027, KCMP_FILE = 0 }; /* DUPFD_QUERY needs Linux 6.10 */
	int r = fcntl(a, DUPFD_QUERY, b);

	if (r < 0)
		r = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
	return r > 0;
}

/* Finds another use of the allocation at that address. Called with cuda_lock. */
static struct cuda_pool_use *find_other(const struct cuda_pool_use *use, CUdeviceptr base)
{
	struct cuda_pool *pool;
	struct cuda_pool_use *other;

	list_for_each_entry(pool, &pools, link) {
		if (pool->device != use->pool->device || pool->life != use->pool->life)
			continue;
		list_for_each_entry(other, &pool->uses, link)
			if (other != use && other->base == base)
				return other;
	}
	return NULL;
}

/* Finds the pool of that descriptor on the device, usable or being imported, or NULL. Called with
 * cuda_lock. */
static struct cuda_pool *find(const struct cuda_device *device, int fd)
{
	struct cuda_pool *pool;

	list_for_each_entry(pool, &pools, link)
		if ((pool->usable || pool->importing) && pool->device == device &&
		    pool->life == atomic_load(&device->life) && is_same_file(pool->fd, fd))
			return pool;
	return NULL;
}

static int let_device_use(const struct cuda_pool *pool, const struct cuda_scope *scope)
{
	struct cuda_access access = { .location = { CUDA_LOCATION_DEVICE, pool->device->ordinal },
				      .flags = CUDA_ACCESS_READ_WRITE };
	CUresult e = scope->driver->pool_set_access(pool->pool, &access, 1);

	return e ? cuda_fail(e, "letting GPU %d use another process's memory pool",
			     pool->device->ordinal)
		 : 0;
}

/* Adds a pool with its first use, to be imported. Called with cuda_lock. */
static int add(struct cuda_device *device, int fd_peek, struct cuda_pool_use *use)
{
	struct cuda_pool *pool = calloc(1, sizeof(*pool));
	int r;

	if (!pool)
		return tl_fail(-ENOMEM, "no memory for a memory pool of another process");
	pool->device = device;
	pool->life = atomic_load(&device->life);
	list_init(&pool->uses);
	pool->fd = fcntl(fd_peek, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (pool->fd < 0) {
		r = tl_fail(-errno, "keeping the descriptor of a memory pool: %m");
		free(pool);
		return r;
	}
	pool->importing = true;
	use->pool = pool;
	list_add_tail(&pool->uses, &use->link);
	list_add_tail(&pools, &pool->link);
	return 0;
}

static int import(struct cuda_pool *pool, const struct cuda_scope *scope)
{
	CUresult e = scope->driver->pool_import(&pool->pool, (void *)(intptr_t)pool->fd,
						CUDA_HANDLE_POSIX_FD, 0);
	int r;

	if (e) {
		pool->pool = NULL;
		r = cuda_fail(e, "importing another process's memory pool");
	} else {
		r = let_device_use(pool, scope);
	}
	pthread_mutex_lock(&cuda_lock);
	pool->importing = false;
	pool->usable = !r;
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
	return r;
}

/* Uses the existing import of the pool, or makes one. */
static int use_pool(struct cuda_device *device, const struct cuda_scope *scope, int fd_peek,
		    struct cuda_pool_use *use)
{
	bool is_new;
	int r = 0;

	pthread_mutex_lock(&cuda_lock);
	while ((use->pool = find(device, fd_peek)) && use->pool->importing)
		cuda_wait_changed(DEADLINE_NEVER);
	is_new = !use->pool;
	if (is_new)
		r = add(device, fd_peek, use);
	else
		list_add_tail(&use->pool->uses, &use->link);
	pthread_mutex_unlock(&cuda_lock);
	return !r && is_new ? import(use->pool, scope) : r;
}

/* Waits while another use of the allocation at that address is ending. Called with cuda_lock. */
static int wait_for_closing(struct cuda_pool_use *use, CUdeviceptr base, int64_t deadline)
{
	const struct cuda_pool_use *other;

	use->base = base;
	while ((other = find_other(use, base)) && other->closing) {
		use->base = 0; /* the other use frees it, so it has to be opened again */
		if (!cuda_wait_changed(deadline))
			return tl_fail(-ETIMEDOUT,
				       "the tensor's memory is being closed in this process, which "
				       "waits for work of GPU %d that has not ended in time",
				       use->pool->device->ordinal);
	}
	return 0;
}

/* Opens the allocation, and repeats that if others have freed any meanwhile: if they freed this
 * one, it ended for all uses. Opening it twice does no harm. */
static int open_memory(struct cuda_pool_use *use, const struct cuda_scope *scope,
		       const unsigned char *handle, int64_t deadline)
{
	struct cuda_pool_pointer pointer;
	unsigned before;
	CUdeviceptr base;
	CUresult e;
	int r = 0;

	memcpy(pointer.bytes, handle, sizeof(pointer.bytes));
	pthread_mutex_lock(&cuda_lock);
	do {
		before = frees;
		pthread_mutex_unlock(&cuda_lock);
		e = scope->driver->pool_import_pointer(&base, use->pool->pool, &pointer);
		pthread_mutex_lock(&cuda_lock);
		if (!e)
			r = wait_for_closing(use, base, deadline);
	} while (!e && !r && (!use->base || frees != before));
	pthread_mutex_unlock(&cuda_lock);
	return e ? cuda_fail(e, "opening memory of another process's pool on GPU %d",
			     use->pool->device->ordinal)
		 : r;
}

int cuda_pool_open(struct cuda_device *device, const struct cuda_scope *scope, int fd_peek,
		   const unsigned char *handle, int64_t deadline, CUdeviceptr *base,
		   struct cuda_pool_use **out)
{
	struct cuda_pool_use *use;
	int r;

	if (!scope->driver->pool_import)
		return tl_fail(-ENOTSUP, "this driver (%d) has no stream-ordered memory pools",
			       scope->driver->version);
	use = calloc(1, sizeof(*use));
	if (!use)
		return tl_fail(-ENOMEM, "no memory for a memory pool of another process");
	r = use_pool(device, scope, fd_peek, use);
	if (!use->pool) {
		free(use);
		return r;
	}
	*out = use;
	if (!r)
		r = open_memory(use, scope, handle, deadline);
	*base = r ? 0 : use->base;
	return r;
}

/* Frees the allocation, unless others use it. */
static void close_memory(struct cuda_pool_use *use, const struct cuda_scope *scope)
{
	pthread_mutex_lock(&cuda_lock);
	if (scope && use->base && !find_other(use, use->base)) {
		use->closing = true;
		pthread_mutex_unlock(&cuda_lock);
		scope->driver->mem_free(use->base);
		pthread_mutex_lock(&cuda_lock);
		frees++;
	}
	use->base = 0;
	use->closing = false;
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_pool_close(struct cuda_pool_use *use, const struct cuda_scope *scope)
{
	struct cuda_pool *pool = use->pool;
	bool last;

	close_memory(use, scope);
	pthread_mutex_lock(&cuda_lock);
	list_del(&use->link);
	last = list_empty(&pool->uses);
	if (last)
		pool->usable = false;
	pthread_mutex_unlock(&cuda_lock);
	free(use);
	if (!last)
		return;
	if (scope && pool->pool)
		scope->driver->pool_destroy(pool->pool);
	pthread_mutex_lock(&cuda_lock);
	list_del(&pool->link);
	pthread_mutex_unlock(&cuda_lock);
	fd_close(pool->fd);
	free(pool);
}

void cuda_pools_inherit(void)
{
	struct cuda_pool *pool;

	list_for_each_entry(pool, &pools, link)
		pool->fd = fd_close(pool->fd);
}
