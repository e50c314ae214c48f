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
	struct session *session;	  /* with a count on it */
	uint64_t ref;
	void *private_map; /* copy-on-write: this lease's own mapping */
	size_t private_size;
	int ndim;	/* room in dims; dl_tensor.ndim is its user's to change */
	int64_t dims[]; /* shape, then strides */
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
 * and the use's count. 0, LEASE_E_UNSERVED, SESSION_E_*, or a negative errno.
 */
int tensor_lease_new(const struct use *use, uint64_t ref, enum tl_mode mode, int64_t deadline,
		     DLManagedTensorVersioned **out);
