/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing tensors. A part of <tensorlease/tensorlease.h>. */
#ifndef TENSORLEASE_PUBLISH_H
#define TENSORLEASE_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/base.h>
#include <tensorlease/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor that its producer is still writing. */
typedef struct tl_draft tl_draft;

/* ---- Publishing ---------------------------------------------------------------------------- */

/*
 * TL_LIFETIME_* - when a tensor goes although its name was neither replaced nor deleted
 *
 * These are bits of the members called `lifetime` of tl_spec, tl_put_options and tl_group_item,
 * which also have a time to live, `ttl_ns`, that begins when the tensor is published; 0 means that
 * it has none. They may be combined; the first one to be over ends the tensor. It then goes as if
 * by tl_delete(): processes that hold it keep it. The next tensor under its name has a lifetime of
 * its own.
 */
enum {
	/* It goes when the connection of the client that published it ends: by tl_close(), with the
	 * process, however that ends, or when the connection is lost. */
	TL_LIFETIME_OWNER_BOUND = 1,
	/* The daemon may give it up while nobody holds it, when there is no space for another
	 * tensor of its namespace: the least recently used first, and first those of the user who
	 * needs the space. Its last use is its last get, or the last time that it was seen to be
	 * held. A member of a group is given up by itself, but the memory of a group comes back
	 * with its last member. Tensors on a GPU are given up when the daemon has refused to share
	 * one more allocation there. */
	TL_LIFETIME_EVICTABLE = 2,
};

/*
 * TL_RING_* - publishing the same again and again
 *
 * A producer that publishes tensors of one type and shape under one name again and again may have a
 * ring: a set of slots, in which it publishes without asking the daemon. Consumers see no
 * difference. A ring is for tensors on the CPU with bytes, without a lifetime, with at most 6
 * dimensions and 24 bytes of metadata. It ends when anything else is published under the name, when
 * one of its tensors gets another name, with tl_close(), and with its producer's connection. All
 * its slots are charged to the producer's user.
 *
 * 0 lets the library decide: a name with tensors of at most 4 MiB gets its first ring at the third
 * equal publish with less than 2 seconds between them, and each later one after twice as many as
 * the last. Beside a copy of more than that the daemon's part is small. A ring begins with up to
 * ten round trips, and takes its memory then. A number up to TL_RING_MAX asks for a ring of so many
 * slots, at the first publish; 0 for up to 64. A ring takes at most a sixteenth of the daemon's
 * capacity if 3 slots fit into that, and is given back before any request for memory is refused.
 * Nothing is given up for a ring, and there is none unless a quarter of the capacity and of the
 * user's quota stays free. So it may have fewer slots, or there is none; then publishes of this
 * client ask again 100 ms later.
 */
#define TL_RING_AUTO 0		/* as the library decides */
#define TL_RING_MAX 64		/* slots */
#define TL_RING_NONE UINT32_MAX /* never */

/*
 * Stated versions
 *
 * A process that publishes here what it reads on another host gives it the versions that it has
 * there, so that `newer_than` means the same on every host. It states them in tl_spec.version,
 * tl_put_options.versions or tl_group_options.versions. The daemon's configuration must have
 * `mirror = yes` for the namespace, and only the namespace's owner, root and the daemon's user may
 * state versions; others fail with -EACCES.
 *
 * A stated version is larger than the last one that the daemon remembers of that name, also of a
 * deleted one; otherwise the publish fails with -ESTALE, and the text names both. It fails with
 * -EINVAL if the version is above the nanoseconds since 1970. The next version, if it is not
 * stated, is the one after it. A tensor whose version is stated is never published in a ring.
 */

/* TL_CREATE_* - flags of tl_spec */
enum {
	/*
	 * On the CPU: the tensor has pages of its own. They are zero at first, nothing else ever
	 * lies in them, and they go back to the kernel with the tensor. So its readers see nothing
	 * else of this producer, however long they keep their mappings (SECURITY.md has the rules
	 * for other tensors). It takes whole pages of the capacity, and each create asks the
	 * daemon, which makes the pages. There is no ring: @ring must be 0 or TL_RING_NONE.
	 */
	TL_CREATE_OWN_PAGES = 1,
};

/* tl_spec - description of a tensor to be created */
typedef struct tl_spec {
	size_t size;	       /* sizeof(tl_spec) */
	const int64_t *shape;  /* @ndim sizes, each 0 or more; may be NULL if @ndim is 0 */
	int32_t ndim;	       /* 0 to TL_NDIM_MAX */
	DLDataType dtype;      /* any DLPack code from 0 to 17 in its widths, with 1 lane or more */
	uint64_t dlpack_flags; /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, or 0 */
	int64_t timeout_ns;    /* how long to wait for space if there is none */
	DLDevice device;       /* all 0 or kDLCPU: the CPU; kDLCUDA: the GPU of that number */
	int64_t ttl_ns;	       /* time to live, at most TL_TTL_MAX; 0: none */
	uint32_t lifetime;     /* TL_LIFETIME_* */
	uint32_t ring;	       /* TL_RING_*, or how many slots; 0: as the library decides */
	uint32_t flags;	       /* TL_CREATE_* */
	uint32_t evict_idle_s; /* seconds: what was used in the last so many makes no space for it;
				  0: all evictable tensors may */
	uint64_t version;      /* stated versions, above; 0: the one after the name's last */
} tl_spec;

/*
 * tl_create - make a draft, memory for a tensor that will be published
 *
 * Write the tensor through tl_draft_tensor(), then call tl_commit() or tl_abort(). The memory may
 * hold old bytes of this user, unless spec->flags has TL_CREATE_OWN_PAGES. On the CPU no request is
 * made if the library has a prefetched draft, because a tensor of the same size was published
 * before.
 *
 * On a GPU, whose number is that of CUDA in this process, the memory is the library's own, made
 * with CUDA's virtual memory management in units of 2 MiB. Tensors published in it outlive this
 * process, and consumers map them read-only. The memory is recycled: a producer that publishes the
 * same size again and again settles into a fixed set of allocations. Say with tl_draft_set_stream()
 * (in <tensorlease/cuda.h>) on which stream the tensor is written before tl_commit().
 *
 * Ownership: *out is yours; tl_commit() and tl_abort() consume it. @spec may go afterwards.
 * Blocking: for one round trip at most if there is space, else for at most spec->timeout_ns. The
 * daemon may take tl_connect_options.timeout_ns, and a second for each 100 MB, for the answer. On a
 * GPU without space it is at least 0.2 s if the library has memory there to unmap, which takes
 * until the work on that GPU has ended.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOSPC		the tensor does not fit into the daemon's capacity, /dev/shm is full, or the
 *			daemon may make no file as large (RLIMIT_FSIZE); also when the time to wait
 *			for space is over; at once if the namespace has as many tensors as it may,
 *			or this client has 1,024 drafts or 64 creates that wait
 *	-EDQUOT		the same for this user's quota
 *	-EACCES		the name belongs to another user, or this user may not publish here
 *	-ENOTSUP	spec->device is neither the CPU nor a GPU of CUDA, or this driver or GPU has
 *			no virtual memory that can be exported, or TL_CREATE_OWN_PAGES on a GPU
 *	-ENODEV		CUDA cannot be used here, or there is no such GPU
 *	-ENOMEM		also: the memory of the GPU is full
 * Since: 0.1; on GPUs since 0.2
 */
TL_API int tl_create(tl_client *client, const char *name, const tl_spec *spec, tl_draft **out);

/*
 * tl_draft_tensor - describe the memory of a draft
 *
 * The tensor is writable and C-contiguous, with explicit strides, a byte_offset of 0 and data at a
 * multiple of TL_ALIGNMENT, or NULL if it has no bytes. Only its bytes may be changed: a commit or
 * an export of a draft whose tensor was changed fails with -EINVAL.
 *
 * Ownership: the tensor belongs to the draft and goes with it.
 * Blocking: never.
 * Threads: any.
 * Returns: the tensor, or NULL if @draft is NULL.
 * Since: 0.1
 */
TL_API DLTensor *tl_draft_tensor(tl_draft *draft);

/*
 * tl_draft_set_metadata - attach metadata to a draft
 *
 * Attaches @size opaque bytes, such as a timestamp or a frame number, which tl_tensor_info() and
 * tl_stat() show to consumers. They replace earlier metadata; a @size of 0 removes it.
 *
 * Ownership: the bytes are copied.
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, or
 *	-EINVAL		@size is above TL_METADATA_MAX, or @metadata or @draft is NULL
 *	-ENOMEM		this process is out of memory
 * Since: 0.1
 */
TL_API int tl_draft_set_metadata(tl_draft *draft, const void *metadata, size_t size);

/*
 * tl_commit - publish a draft
 *
 * From now on the draft's name means this tensor, the tensor that it meant before is retired, and
 * nobody may write to the bytes any more.
 *
 * The call waits until the daemon has published the tensor, and stores its version if @version is
 * not NULL. In a ring (TL_RING_*) it does not ask the daemon. After -ETIMEDOUT or -ENOTCONN the
 * tensor may have been published or not.
 *
 * Ownership: consumes @draft, also on failure.
 * Blocking: for one round trip, but never in a ring; for up to ten when a ring begins.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, a common error, or
 *	-EINVAL		the tensor of tl_draft_tensor() was changed; the text says how
 *	-EACCES		the name belongs to another user, or this user may not publish here, or
 *			not state the version
 *	-EDQUOT		the name is new, and the user has as many as it may have
 *	-ENOSPC, -EDQUOT	there is no space for a copy: a draft that is a slot of a ring,
 *			and has more than 24 bytes of metadata, is published as one
 *	-ESTALE		the draft is another process's, its client is closed, or the daemon that
 *			granted it has ended; or the stated version is not above the name's last
 * Since: 0.1
 */
TL_API int tl_commit(tl_draft *draft, uint64_t *version);

/*
 * tl_abort - give a draft back unpublished
 *
 * The memory may be used for another draft at once, so nobody may write to it any more.
 *
 * Ownership: consumes @draft; NULL is allowed and does nothing.
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: nothing; it cannot fail.
 * Since: 0.1
 */
TL_API void tl_abort(tl_draft *draft);

/*
 * tl_draft_to_dlpack - turn a draft into a tensor that its deleter aborts
 *
 * This is for libraries that fill tensors of their own kind. Give *out, or any DLPack tensor
 * over the same bytes, to tl_publish() on the same client, which commits the draft without a copy.
 * Calling the deleter without that aborts the draft.
 *
 * Ownership: *out is yours and owns the draft; the handle @draft may then only be used for
 * tl_draft_set_stream().
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, or
 *	-EINVAL		@draft or @out is NULL, or as tl_commit()
 *	-ESTALE		as tl_commit()
 * Since: 0.1
 */
TL_API int tl_draft_to_dlpack(tl_draft *draft, DLManagedTensorVersioned **out);

/*
 * TL_STREAM_* - streams of a GPU, numbered as in DLPack's Python protocol
 *
 * Any other value is a CUstream or cudaStream_t of the device's primary context. Tensors on the CPU
 * have no stream.
 */
#define TL_STREAM_DEFAULT ((intptr_t)0)	   /* none was given: the legacy default stream */
#define TL_STREAM_LEGACY ((intptr_t)1)	   /* CUDA's legacy default stream */
#define TL_STREAM_PER_THREAD ((intptr_t)2) /* the default stream of the calling thread */
#define TL_STREAM_NONE ((intptr_t)-1)	   /* no order is wanted: the caller ensures it */

/* TL_PUBLISH_* - flags of tl_put_options */
enum {
	/* tl_publish() and tl_publish_many(): fail with -ENOTSUP if a tensor would have to be
	 * copied. Functions that always copy refuse it with -EINVAL. */
	TL_PUBLISH_NO_COPY = 1,
	/* On a GPU: wait here until the stream has written the tensor, so that no get has to wait.
	 * This is right for weights. */
	TL_PUBLISH_SEALED = 2,
	/* On a GPU: copy the tensor, on that GPU, if its memory cannot be shared as it is. */
	TL_PUBLISH_STAGING = 4,
};

/* tl_put_options - how to publish a tensor that exists already */
typedef struct tl_put_options {
	size_t size;	       /* sizeof(tl_put_options) */
	const void *metadata;  /* opaque bytes to attach, which are copied; may be NULL */
	size_t metadata_size;  /* how many bytes, at most TL_METADATA_MAX */
	uint64_t dlpack_flags; /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED if the source is so */
	int64_t timeout_ns;    /* how long to wait for space for a copy if there is none */
	uint32_t flags;	       /* TL_PUBLISH_* */
	uint32_t lifetime;     /* TL_LIFETIME_* */
	intptr_t stream; /* on a GPU: TL_STREAM_*, or the stream on which the source is written */
	int64_t ttl_ns;	 /* time to live, at most TL_TTL_MAX; 0: none */
	uint32_t ring;	 /* TL_RING_*, or how many slots */
	uint32_t evict_idle_s; /* as in tl_spec */
	uint32_t threads;      /* so many copy on the CPU; 0: as the size and the processors of this
				  process are worth, 4 at most. Since 0.2 */
	uint32_t reserved;     /* 0 */
	const uint64_t *versions; /* stated versions, one for each tensor, 0 for the one after the
				     name's last; NULL: none is stated */
} tl_put_options;

/*
 * tl_put - publish a copy of a tensor
 *
 * Creates a draft, copies @source into it and commits it. The copy is C-contiguous. On the CPU the
 * source may have any strides, negative ones and 0 included, and any byte_offset. On a GPU it must
 * be C-contiguous; the copy lies on the same GPU, in memory as tl_create() makes it there, and is
 * queued on options->stream, on which the caller's next writes to the source must be queued too.
 *
 * Ownership: @source stays yours.
 * Blocking: as tl_create() does with options->timeout_ns, as tl_commit() does, and for the time of
 * the copy. 8 MiB and more are copied by several threads, which have ended when it returns.
 * Threads: any.
 * Returns: 0, an error of tl_create() or tl_commit(), or
 *	-EINVAL		also: @source breaks a rule of DLPack, and the text says which
 *	-ENOTSUP	@source is neither on the CPU nor on a GPU of CUDA, or it is on a GPU and
 *			not C-contiguous
 *	-EBUSY		the stream is being captured into a graph
 * Since: 0.1
 */
TL_API int tl_put(tl_client *client, const char *name, const DLTensor *source,
		  const tl_put_options *options, uint64_t *version);

/*
 * tl_publish - publish a tensor by handing it over
 *
 * On the CPU no byte is copied if the tensor lies in memory that @client handed out: it is
 * contiguous and begins where an exported draft does, which is then committed, or is a tensor that
 * was got read-only, in its whole extent. Another one is copied once, and *copied says so; so is
 * one of another client, and a draft that is a slot of a ring where it gets another name, a
 * lifetime or more than 24 bytes of metadata. DLPack flags in @options are ignored, since the
 * tensor has its own. A lifetime in @options takes the place of that which the draft was created
 * with; the draft's ring is as it was created with.
 *
 * On a GPU nothing is copied unless options->flags has TL_PUBLISH_STAGING: the allocation in which
 * the tensor lies is exported. It keeps its strides, up to 16 dimensions, as long as they are above
 * 0 and no two elements overlap or interleave. Gets wait for the work that was queued on
 * options->stream when this was called (tl_get()). The library calls the tensor's deleter
 * when no lease is left on the publication and no process has the memory mapped; until then the
 * memory must stay as it is. Memory that was not made with CUDA's virtual memory management dies
 * with this process, and the publication with it: a later get fails with -ENODATA.
 *
 * A tensor on a GPU that was got has a second name then, as it has on the CPU, and its producer
 * keeps the memory until nobody uses it under either. If the GPU has not finished it, the call
 * waits for that.
 *
 * Deleters are called one after the other on one thread of the library, so a slow one delays the
 * others. If the daemon dies, the holders of a tensor are no longer known; the deleters are then
 * called by tl_close().
 *
 * Ownership: on success @tensor is consumed. On the CPU its deleter has been called; on a GPU the
 * library owns it until it calls the deleter, on any thread. On failure @tensor is still yours,
 * except after -EINPROGRESS.
 * Blocking: as tl_commit() does, or as tl_put() does if it copies; with
 * TL_PUBLISH_SEALED until the GPU has written the tensor.
 * Threads: any.
 * Returns: 0, an error of tl_put(), or
 *	-ENOTSUP	a copy is needed and not allowed, or this memory of a GPU cannot be shared;
 *			the text gives the reason and the remedy
 *	-ESTALE		also: another thread has published the same draft meanwhile
 *	-ENODATA	a tensor on a GPU that was got: its memory went with its producer
 *	-ENODEV		CUDA cannot be used here; the text names the missing part
 *	-ENOSPC		also: over the daemon's limit for that GPU, for all users together
 *	-EDQUOT		also: over the daemon's limit for that GPU, for one user
 *	-EINPROGRESS	on a GPU only: the daemon did not answer in time, or ended the connection
 *			first, so the tensor may have been published or still be. @tensor is the
 *			library's, as on success, and its deleter is called when nobody can hold it
 * Since: 0.1
 */
TL_API int tl_publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
		      const tl_put_options *options, bool *copied, uint64_t *version);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_PUBLISH_H */
