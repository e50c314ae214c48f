/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of client/gpu/ that the public functions call. */
#pragma once

#include <stdbool.h>
#include <tensorlease/tensorlease.h>

#include "client/memory/memory_ops.h"

extern const struct memory_kind cuda_kind;

/* Messages about GPU tensors that no thread waits for. The receive mutex is held. */

struct conn_message;
struct session;

/* FREED and UNMAP, which answer no request. */
void cuda_take_freed(struct session *s, const struct conn_message *m);
void cuda_take_unmap(struct session *s, const struct conn_message *m);
/* A late answer: to a PLACE or GROUP whose publisher has stopped waiting, or a KEEP's error. */
void cuda_late_answer(struct session *s, const struct conn_message *m);

/* Another daemon serves the session. False: the session has exports, which that daemon cannot
 * know. */
bool cuda_session_adopted(struct session *s);

/* The end of a session that uses GPUs. */

struct session;

/* The session has no more users: closes what it has on GPUs. True: the slow thread does that,
 * because something is open, and calls client_session_ended() afterwards. */
bool cuda_session_end(struct session *s);

/* fork(): cuda_lock is held around it; in the child nothing of CUDA can be used. */

void cuda_before_fork(void);
void cuda_after_fork_parent(void);
void cuda_after_fork_child(void); /* the lock is free then */
void cuda_child_releases(void);	  /* after the locks are free */

/* Copies, which belong to this process, of tensors that were requested on another device. */

/* True if the tensor must be copied to be on that device. */
bool copied_needed(const DLManagedTensorVersioned *held, DLDevice to);

/*
 * Copies the tensor of a lease of ours to the device of @options, on the stream of @options if that
 * device is a GPU; TL_STREAM_NONE: the host waits for the copy. The timeout of @options limits the
 * wait for the original to be written; 0: the client's. Takes over @held, also on failure. Returns
 * 0, or a negative errno.
 */
int copied_new(tl_client *client, const char *name, DLManagedTensorVersioned *held,
	       const tl_get_options *options, DLManagedTensorVersioned **out);

/* Returns the original's information at the time of the copy; NULL: the tensor is no such copy. */
const tl_info *copied_info(const DLManagedTensorVersioned *tensor);
/* Makes one more tensor over the same copy, for use on @stream unless that is TL_STREAM_NONE.
 * Returns 0, or a negative errno. */
int copied_again(const DLManagedTensorVersioned *tensor, intptr_t stream,
		 DLManagedTensorVersioned **out);
