/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of leases, and the mapping that each of them lies in. A daemon that says that a
 * segment has ended must not make us unmap memory that a lease points to. So before a mapping is
 * removed, lease_objects_use() looks for its users. A count in the mapping would cost every get two
 * locked instructions. Instead a few objects of each thread, which it uses again and again, are in
 * a list, and each has a word for the memory that it uses. Other objects are counted.
 *
 * ORDER: a lease writes its word, then use_count_fence(), then reads the mapping's generation.
 * drop_read() in mapping.c takes the generation away, then use_count_barrier(), then calls
 * lease_objects_use().
 */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "client/memory/use_count.h"
#include "util/list.h"

struct session;

enum {
	LEASE_CACHED_NDIM = 4,
	LEASE_CACHED_MAX = 16,
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LEASE_CACHE 0 /* lets the sanitizer see every end */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LEASE_CACHE 0
#endif
#endif
#ifndef LEASE_CACHE
#define LEASE_CACHE 1
#endif

/* Memory that leases may lie in. */
struct leased {
	_Atomic uint32_t counted; /* leases in it that are in no list */
};

enum { TENSOR_LEASE_OWN = 56 };

/* The DLPack tensor that a get hands out; its deleter is the release. */
struct tensor_lease {
	DLManagedTensorVersioned managed; /* first: the deleter gets its address */
	union {
		struct session *session;   /* with a count on it */
		struct tensor_lease *next; /* in a thread's cache, where it is no lease */
	};
	uint64_t ref;
	struct leased *_Atomic used; /* the memory that data lies in */
	size_t private_size;	     /* copy-on-write: this lease's own mapping */
	union {
		void *private_map;				     /* shared memory's */
		alignas(void *) unsigned char own[TENSOR_LEASE_OWN]; /* another kind's */
	};
	struct list objects_link; /* if it is listed; lease_objects.c */
	bool listed;
	bool copied;	/* the private mapping is a copy */
	int64_t dims[]; /* shape, then strides; dl_tensor.ndim is its user's to change */
};

/* Each thread keeps a few for its next gets, which spares it malloc(). */
struct lease_cache {
	struct tensor_lease *first; /* linked through `next` */
	unsigned n;
	unsigned born;	 /* listed objects that this thread made */
	bool registered; /* the key's destructor will empty it */
};
extern _Thread_local struct lease_cache lease_cache __attribute__((tls_model("initial-exec")));

struct tensor_lease *lease_object_new(int ndim);
void lease_object_free(struct tensor_lease *l);
/* To be called for the thread's first object: has the cache emptied when the thread ends. */
bool lease_cache_register(void);

/* True if a lease lies in it. To be called after use_count_barrier(). */
bool lease_objects_use(const struct leased *m);

static inline struct tensor_lease *lease_object_take(int ndim)
{
	struct tensor_lease *l = lease_cache.first;

	if (__builtin_expect(!l || ndim > LEASE_CACHED_NDIM, 0))
		return lease_object_new(ndim);
	lease_cache.first = l->next;
	lease_cache.n--;
	return l;
}

/* Gives the object back: from now on everything that the lease used may be removed. */
static inline void lease_object_give(struct tensor_lease *l)
{
	if (__builtin_expect(!l->listed || lease_cache.n == LEASE_CACHED_MAX, 0) ||
	    __builtin_expect(!lease_cache.registered && !lease_cache_register(), 0)) {
		lease_object_free(l);
		return;
	}
	atomic_store_explicit(&l->used, NULL, memory_order_release);
	l->next = lease_cache.first;
	lease_cache.first = l;
	lease_cache.n++;
}

/* To be called before mapping_find(). */
static inline void lease_object_use(struct tensor_lease *l, struct leased *m)
{
	atomic_store_explicit(&l->used, m, memory_order_relaxed);
	if (__builtin_expect(!l->listed, 0))
		atomic_fetch_add(&m->counted, 1);
	use_count_fence();
}
