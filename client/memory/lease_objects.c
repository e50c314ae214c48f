/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "client/memory/lease_objects.h"

_Thread_local struct lease_cache lease_cache __attribute__((tls_model("initial-exec")));

/* The listed objects; under use_count_lock(), which fork() takes too. */
static struct list objects = LIST_INIT(objects);

static pthread_once_t cache_once = PTHREAD_ONCE_INIT;
static pthread_key_t cache_key;
static bool cache_usable;

/* ---- Single objects ---- */

struct tensor_lease *lease_object_new(int ndim)
{
	int capacity = ndim > LEASE_CACHED_NDIM ? ndim : LEASE_CACHED_NDIM;
	struct tensor_lease *l = malloc(sizeof(*l) + 2 * sizeof(int64_t) * (size_t)capacity);

	if (!l)
		return NULL;
	atomic_init(&l->used, NULL);
	l->listed = LEASE_CACHE && ndim <= LEASE_CACHED_NDIM && lease_cache.born < LEASE_CACHED_MAX;
	if (l->listed) {
		lease_cache.born++;
		use_count_lock();
		list_add_tail(&objects, &l->objects_link);
		use_count_unlock();
	}
	return l;
}

void lease_object_free(struct tensor_lease *l)
{
	struct leased *m = atomic_load_explicit(&l->used, memory_order_relaxed);

	if (l->listed) {
		use_count_lock();
		list_del(&l->objects_link);
		use_count_unlock();
	} else if (m) {
		atomic_fetch_sub(&m->counted, 1);
	}
	free(l);
}

bool lease_objects_use(const struct leased *m)
{
	struct tensor_lease *l;
	bool found = false;

	if (atomic_load(&m->counted))
		return true;
	use_count_lock();
	list_for_each_entry(l, &objects, objects_link)
		found |= atomic_load(&l->used) == m;
	use_count_unlock();
	return found;
}

/* ---- A thread's ---- */

static void cache_empty(void *arg)
{
	(void)arg;
	while (lease_cache.first) {
		struct tensor_lease *l = lease_cache.first;

		lease_cache.first = l->next;
		lease_object_free(l);
	}
	lease_cache.n = 0;
	lease_cache.registered = false; /* a later deleter of this thread registers again */
}

static void cache_init(void)
{
	cache_usable = LEASE_CACHE && !pthread_key_create(&cache_key, cache_empty);
}

bool lease_cache_register(void)
{
	pthread_once(&cache_once, cache_init);
	lease_cache.registered = cache_usable && !pthread_setspecific(cache_key, &lease_cache);
	return lease_cache.registered;
}
