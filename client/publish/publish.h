/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes tensors, claims names, and makes groups. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

/* Checks that a tensor which stays where it lies can be published with its strides. Sets *@nbytes
 * to the number of bytes that it touches. Returns 0 or -ENOTSUP. */
int strides_check(const char *name, const DLTensor *t, uint64_t flags, uint64_t *nbytes);

/* Does the work of tl_publish(), with options that are checked. */
int publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
	    const tl_put_options *options, bool *copied, uint64_t *version);

/*
 * Claims on names that are to be published. The daemon keeps them, not this process.
 */

struct tl_client;

/* Does the work of tl_claim(). The name is checked. */
int claim_take(struct tl_client *client, const char *name, int64_t timeout_ns);
/* Does the work of tl_claim_many(). The names are checked. */
int claim_many(struct tl_client *client, const char *const *names, size_t n, int *outcomes);
/* Does the work of tl_unclaim_many(). The names are checked. */
int claims_give_up(struct tl_client *client, const char *const *names, size_t n);

/* Groups: many tensors that are published in one step. */

/* Makes a group with options that are checked. */
int group_create(tl_client *client, const tl_group_item *items, const tl_group_options *o,
		 size_t count, tl_group **out);
/* Copies sources[i] into tensor i of the group. Nothing is copied unless all fit. */
int group_copy(tl_group *group, const DLTensor *const *sources, uint32_t threads);
/* Sets the stream that writes tensors on devices. @sealed: the host waits for that stream. */
void group_stream(tl_group *group, intptr_t stream, bool sealed);
DLTensor *group_tensor(tl_group *group, size_t index); /* NULL: no such tensor */
int group_commit(tl_group *group);		       /* consumes it */
tl_group *group_free(tl_group *group); /* frees it; it is not published unless it was already */

/* Does the work of tl_put_many(), with options that are checked. */
int group_put(tl_client *client, const char *const *names, const DLTensor *const *sources,
	      size_t count, const tl_put_options *o);
/* Does the work of tl_publish_many(), with options that are checked. */
int group_hand(tl_client *client, const char *const *names,
	       DLManagedTensorVersioned *const *tensors, size_t count, const tl_put_options *o,
	       size_t *copied);
