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

#include "client/cuda/lock.h"
#include "client/cuda/pool.h"
#include "client/error.h"
#include "util/fd.h"

struct cuda_pool {
	struct list link;
	struct cuda_device *device;
	unsigned life;	  /* of the device's contexts: in which it was imported */
	struct list uses; /* the last one ends it */
	int fd;		  /* of the producer's, to tell the pool by; -1 in a forked child */
	bool importing;	  /* others who want it wait for cuda_changed */
	bool usable;	  /* it is imported, and is not about to end */
	CUmemoryPool pool;
};

/* An allocation of a pool that is open here. */
struct cuda_pool_use {
	struct list link;
	struct cuda_pool *pool;
	unsigned char pointer[WIRE_HANDLE_BYTES];
};

/* Under cuda_lock, without which the driver is called: fork() also finds those here that a thread
 * is importing or ending. */
static struct list pools = LIST_INIT(pools);

/*
 * Were both made of one descriptor? No producer can pretend that, since both would be its own. All
 * pools of a real driver are files of the same inode. False also if the system does not tell.
 */
static bool is_same_file(int a, int b)
{
	enum { DUPFD_QUERY = 1027, KCMP_FILE = 0 }; /* the first since Linux 6.10 */
	int r = fcntl(a, DUPFD_QUERY, b);

	if (r < 0)
		r = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
	return r > 0;
}

/* Called with cuda_lock. */
static bool is_open(const struct cuda_pool *pool, const unsigned char *pointer)
{
	struct cuda_pool_use *use;

	list_for_each_entry(use, &pool->uses, link)
		if (!memcmp(use->pointer, pointer, sizeof(use->pointer)))
			return true;
	return false;
}

/* One that is usable, or is being imported. Called with cuda_lock. */
static struct cuda_pool *find(const struct cuda_device *device, int fd,
			      const unsigned char *pointer)
{
	struct cuda_pool *pool;

	list_for_each_entry(pool, &pools, link)
		if ((pool->usable || pool->importing) && pool->device == device &&
		    pool->life == atomic_load(&device->life) && is_same_file(pool->fd, fd) &&
		    !is_open(pool, pointer))
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

/* Adds one with its first use, to be imported. Called with cuda_lock. */
static int add(struct cuda_device *device, int fd_peek, struct cuda_pool_use *use)
{
	struct cuda_pool *pool = calloc(1, sizeof(*pool));
	int r;

	if (!pool)
		return tl_fail(-ENOMEM, "no memory for a memory pool of another process");
	pool->device = device;
	pool->life = atomic_load(&device->life);
	list_init(&pool->uses);
	pool->fd = fcntl(fd_peek, F_DUPFD_CLOEXEC, 0);
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

int cuda_pool_use(struct cuda_device *device, const struct cuda_scope *scope, int fd_peek,
		  const unsigned char *pointer, struct cuda_pool_use **out)
{
	struct cuda_pool_use *use;
	bool is_new;
	int r = 0;

	*out = NULL;
	if (!scope->driver->pool_import)
		return tl_fail(-ENOTSUP, "this driver (%d) has no stream-ordered memory pools",
			       scope->driver->version);
	use = malloc(sizeof(*use));
	if (!use)
		return tl_fail(-ENOMEM, "no memory for a memory pool of another process");
	memcpy(use->pointer, pointer, sizeof(use->pointer));
	pthread_mutex_lock(&cuda_lock);
	while ((use->pool = find(device, fd_peek, pointer)) && use->pool->importing)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	is_new = !use->pool;
	if (is_new)
		r = add(device, fd_peek, use);
	else
		list_add_tail(&use->pool->uses, &use->link);
	pthread_mutex_unlock(&cuda_lock);
	if (r) {
		free(use);
		return r;
	}
	*out = use;
	return is_new ? import(use->pool, scope) : 0;
}

CUmemoryPool cuda_pool_of(const struct cuda_pool_use *use)
{
	return use->pool->pool;
}

void cuda_pool_unuse(struct cuda_pool_use *use, const struct cuda_scope *scope)
{
	struct cuda_pool *pool = use->pool;
	bool last;

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
