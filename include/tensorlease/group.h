/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: several tensors are published at once. A part of <tensorlease/tensorlease.h>. */
#ifndef TENSORLEASE_GROUP_H
#define TENSORLEASE_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/publish.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Several tensors that their producer is still writing and will publish in one step. */
typedef struct tl_group tl_group;

/* ---- Groups -------------------------------------------------------------------------------- */

/* TL_GROUP_* - flags of tl_group_item */
enum {
	/* The name is deleted in the same step, if it is there. Of the other members only @name is
	 * used; the rest must be 0. */
	TL_GROUP_DELETE = 1,
};

/* tl_group_item - one tensor of a group, or a name that the group deletes */
typedef struct tl_group_item {
	const char *name;      /* under which it will be published */
	const int64_t *shape;  /* @ndim sizes, each 0 or more; may be NULL if @ndim is 0 */
	int32_t ndim;	       /* 0 to TL_NDIM_MAX */
	DLDataType dtype;      /* as in tl_spec */
	uint64_t dlpack_flags; /* as in tl_spec */
	const void *metadata;  /* opaque bytes to attach, which are copied; may be NULL */
	size_t metadata_size;  /* how many bytes, at most TL_METADATA_MAX */
	int64_t ttl_ns;	       /* as in tl_spec */
	uint32_t lifetime;     /* as in tl_spec */
	uint32_t flags;	       /* TL_GROUP_* */
} tl_group_item;

/* tl_group_options - how to make a group */
typedef struct tl_group_options {
	size_t size;		  /* sizeof(tl_group_options) */
	int64_t timeout_ns;	  /* how long to wait for space if there is none */
	const DLDevice *devices;  /* for each tensor the CPU or a GPU of CUDA; NULL: all on the CPU
				   */
	const uint64_t *versions; /* as in tl_put_options; 0 for a name that is deleted */
} tl_group_options;

/*
 * tl_group_create - make a draft for several tensors
 *
 * All tensors of a group that are on the CPU lie in one segment, and those on a GPU in one
 * allocation of that GPU. Their memory comes back when the last of them has ended. Write each of
 * them through tl_group_tensor(), then call tl_group_commit() or tl_group_abort(). The names must
 * differ.
 *
 * Ownership: *out is yours; tl_group_commit() and tl_group_abort() consume it. @items and @options
 * may go afterwards.
 * Blocking: for one round trip if there is space, else for at most options->timeout_ns.
 * Threads: any.
 * Returns: 0, a common error, or an error whose text names the item:
 *	-EINVAL		@count is not 1 to 65,536, a name is there twice, or an item is wrong
 *	-ENOSPC		as tl_create()
 *	-EDQUOT		as tl_create()
 *	-ENODEV		as tl_create()
 *	-EACCES		this user may not publish here
 *	-ENOTSUP	a device is neither the CPU nor one of CUDA, or its driver cannot export
 *			virtual memory
 * Since: 0.1
 */
TL_API int tl_group_create(tl_client *client, const tl_group_item *items, size_t count,
			   const tl_group_options *options, tl_group **out);

/*
 * tl_group_tensor - describe the memory of one tensor of a group
 *
 * The tensor is writable and laid out as that of tl_draft_tensor().
 *
 * Ownership: the tensor belongs to the group and goes with it.
 * Blocking: never.
 * Threads: any.
 * Returns: the tensor at @index, counted from 0; NULL if there is none, or a name to be deleted.
 * Since: 0.1
 */
TL_API DLTensor *tl_group_tensor(tl_group *group, size_t index);

/*
 * tl_group_commit - publish all tensors of a group in one step
 *
 * A consumer that gets one of the tensors in its new version, and then another of them, gets that
 * in its new version too. On failure none is published, but after -ETIMEDOUT or -ENOTCONN it is not
 * known whether all are, or are going to be.
 *
 * Ownership: consumes @group, also on failure.
 * Blocking: for one round trip for up to 256 tensors and one more at the end, all within the
 * client's request timeout.
 * Threads: any, but only one at a time on a group.
 * Returns: 0, a common error, or
 *	-EINVAL		a tensor of tl_group_tensor() was changed; the text says how
 *	-EACCES		one of the names belongs to another user, or this user may not publish here,
 *			or not state the versions
 *	-ENOSPC		the daemon has too few tensors or names left for the group
 *	-EDQUOT		the same of this user's share of them
 *	-ESTALE		as tl_commit()
 * Since: 0.1
 */
TL_API int tl_group_commit(tl_group *group);

/*
 * tl_group_abort - give a group back unpublished
 *
 * The memory may be used for another draft at once, so nobody may write to it any more.
 *
 * Ownership: consumes @group; NULL is allowed and does nothing.
 * Blocking: never.
 * Threads: any, but only one at a time on a group.
 * Returns: nothing; it cannot fail.
 * Since: 0.1
 */
TL_API void tl_group_abort(tl_group *group);

/*
 * tl_put_many - publish copies of several tensors in one step
 *
 * Makes a group, copies sources[i] into its tensor names[i] and commits it. @options hold for each
 * of the tensors, which may be on several devices, with strides and offsets as for tl_put().
 *
 * Ownership: @sources stay yours.
 * Blocking: as tl_group_create() does with options->timeout_ns, and as tl_group_commit() does.
 * Threads: any.
 * Returns: 0, or an error of tl_put(), tl_group_create() or tl_group_commit(), whose text names the
 * tensor. On failure none is published, unless tl_group_commit() says otherwise.
 * Since: 0.1
 */
TL_API int tl_put_many(tl_client *client, const char *const *names, const DLTensor *const *sources,
		       size_t count, const tl_put_options *options);

/*
 * tl_publish_many - publish several tensors in one step, those on GPUs where they lie
 *
 * Publishes tensors[i] under names[i]. Tensors on a GPU are not copied, those on the CPU are.
 * @options hold for each tensor, but TL_PUBLISH_STAGING and their DLPack flags are ignored, since
 * each tensor has its own; options->stream is the stream of the tensors on GPUs. Unless @copied is
 * NULL, *copied is the number of copied tensors. One on a GPU that was got from another process is
 * refused with -ENOTSUP: give it a second name with tl_publish(), or copy it with tl_put_many().
 *
 * Ownership: takes @tensors over on success, and after -EINPROGRESS: their deleters are called, on
 * any thread, once nobody uses the tensors any more. On any other failure they stay yours.
 * Blocking: as tl_group_create() does with options->timeout_ns, and as tl_group_commit() does.
 * Threads: any.
 * Returns: 0, or an error of tl_publish(), tl_group_create() or tl_group_commit(). On failure none
 * is published, unless tl_group_commit() says otherwise.
 * Since: 0.2
 */
TL_API int tl_publish_many(tl_client *client, const char *const *names,
			   DLManagedTensorVersioned *const *tensors, size_t count,
			   const tl_put_options *options, size_t *copied);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_GROUP_H */
