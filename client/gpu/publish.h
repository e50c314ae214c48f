/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes GPU tensors and drafts on GPUs, alone and in groups. */
#pragma once

#include <tensorlease/tensorlease.h>

#include "client/connection/call.h"
#include "client/gpu/buffer.h"
#include "client/gpu/device.h"
#include "client/publish/draft.h"
#include "client/publish/group.h"

/* tl_create() of a draft on the GPU that @request names. */
int cuda_create(struct call *c, const struct use *use, const struct draft_request *request,
		struct tl_draft **out);

/*
 * tl_publish() of a tensor on a GPU that is not a draft of ours. It has been checked, is contiguous
 * and has @nbytes bytes. 0, or a negative errno.
 */
int cuda_publish(struct call *c, const struct use *use, const char *name,
		 DLManagedTensorVersioned *tensor, uint64_t nbytes, const tl_put_options *o,
		 bool *copied, uint64_t *version);
/* tl_put() of a tensor on a GPU. */
int cuda_put(struct call *c, const struct use *use, const char *name, const DLTensor *source,
	     const tl_put_options *o, uint64_t *version);

/* Calls the deleter of a published tensor when its work has ended. If it is an exported draft, the
 * draft no longer uses its stream, which the owner may have destroyed. */
void cuda_tensor_delete(void *tensor);

/*
 * Applies the options of tl_publish() to a draft on a GPU: the stream that writes it, and whether
 * to wait for that stream.
 */
int cuda_draft_written(struct tl_draft *draft, const tl_put_options *o);
/* draft_fill() of struct memory_kind. */
int cuda_draft_fill(struct tl_draft *draft, uint64_t offset, const DLTensor *source,
		    uint64_t nbytes);
/* The stream that writes a draft on a GPU, seen from this thread. */
intptr_t cuda_draft_stream(struct tl_draft *draft);
/* draft_commit() of a draft on a GPU. */
int cuda_draft_commit(struct tl_draft *draft, const struct commit_as *as, uint64_t *version);
/* second_name() of struct memory_kind. */
int cuda_second_name(const struct tensor_lease *l, const char *name, const tl_put_options *o,
		     int64_t deadline);
/*
 * Gives up the draft's buffer, which is reused when the work on its stream has ended. Called when
 * the draft is given up, or else at its end.
 */
void cuda_draft_end(struct tl_draft *draft);
/* cuda_buffer_put() in the form of a callback. */
void cuda_buffer_done(void *buffer);
/* Ends a use of a buffer when the work now queued on the stream has ended. */
void cuda_buffer_leave(struct cuda_buffer *buffer, intptr_t stream);
/* cuda_draft_end() in two steps, the first of which waits for nothing: draft_close() and
 * drafts_left() of struct memory_kind. */
void cuda_draft_close(struct tl_draft *draft, struct list *left);
void cuda_drafts_left(struct list *left);

/*
 * Members of groups that lie on GPUs. Those that the group's user writes are in one draft buffer
 * for each GPU; those that are handed over stay where they are. One event for each GPU stands for
 * the work that writes all of them. memory/memory_ops.h says what each function does.
 */

int cuda_members_allocate(struct members *m, int64_t deadline);
int cuda_members_copy(struct members *m, const DLTensor *const *sources);
int cuda_members_place(struct members *m);
void cuda_member_message(const struct group_member *member, unsigned char *bytes);
void cuda_member_made(struct group_member *member, uint64_t ref);
void cuda_members_asked(struct members *m, uint32_t serial);
void cuda_members_end(struct members *m, int end);
