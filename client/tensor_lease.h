/* SPDX-License-Identifier: Apache-2.0 */
/* The DLPack tensor that a get hands out; its deleter is the release. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "client/catalog.h"
#include "client/client.h"

struct tensor_lease {
	DLManagedTensorVersioned managed; /* first: the deleter gets its address */
	union {
		struct session *session;   /* with a count on it */
		struct tensor_lease *next; /* nobody's: in a thread's cache */
	};
	uint64_t ref;
	struct mapping *_Atomic mapping; /* what data lies in: lease_objects.h */
	size_t private_size;		 /* copy-on-write: this lease's own mapping */
	union {
		void *private_map;
		struct cuda_lease {		    /* on a GPU; cuda/lease.c */
			struct cuda_import *import; /* NULL: nothing is opened */
			struct cuda_event *event;   /* what it waits for once its user has left */
			intptr_t stream;
			uint64_t thread; /* whose TL_STREAM_PER_THREAD that is */
			struct list queue_link;
		} cuda;
	};
	struct list objects_link; /* if it is listed: lease_objects.c */
	bool listed;
	int64_t dims[]; /* shape, then strides; dl_tensor.ndim is its user's to change */
};

/* @managed as a lease of ours, or NULL: somebody else's tensor. */
struct tensor_lease *tensor_lease_of(const DLManagedTensorVersioned *managed);

/*
 * Takes a lease on what @key means now. 0, *@ref and a count in @use: release, then client_leave();
 * LEASE_E_NONE; LEASE_E_TOO_MANY; or a negative errno.
 */
int client_take(tl_client *client, const struct name_key *key, struct use *use, uint64_t *ref);

/*
 * Maps and hands out the tensor of a lease that @use has taken; on success *out has both that lease
 * and the use's count. 0, LEASE_E_UNSERVED, LEASE_E_LOST, SESSION_E_*, or a negative errno.
 */
int tensor_lease_new(const struct use *use, uint64_t ref, const tl_get_options *want,
		     int64_t deadline, DLManagedTensorVersioned **out);

/* A flag beside TL_GET_*: on a GPU, without opening it. */
#define LEASE_HANDLE ((uint32_t)1 << 31)

/* tl_get() with options that are checked already. */
int tensor_lease_get(tl_client *client, const char *name, const tl_get_options *options,
		     DLManagedTensorVersioned **out);

/* Its end, when nothing is mapped for it any more: gives up the lease and the count. */
void tensor_lease_end(struct tensor_lease *l);
/*
 * A lease object of a tensor on a device, with what it has in common with others; its bytes are
 * *@nbytes, not checked against anything. cuda/lease.c.
 */
int tensor_lease_wrap(const struct use *use, uint64_t ref, const struct row_head *head,
		      uint64_t *nbytes, DLManagedTensorVersioned **out);
/* The object alone: nothing was handed out. */
void tensor_lease_unwrap(DLManagedTensorVersioned *managed);
