/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease: named tensors between processes, without a copy.
 *
 * A producer publishes a tensor under a name; any other process gets it by name as a DLPack tensor
 * that lies in the same memory, and gives it back by calling the tensor's deleter. A daemon,
 * tensorleased, knows who published what and who still holds it; getting and releasing a tensor
 * that was mapped before does not ask it.
 *
 *	tl_client *client;
 *	DLManagedTensorVersioned *tensor;
 *
 *	if (tl_connect(&client, NULL) || tl_get(client, "cam0/rgb", NULL, &tensor))
 *		errx(1, "%s", tl_last_error());
 *	... read tensor->dl_tensor.data ...
 *	tensor->deleter(tensor);
 *	tl_close(client);
 *
 * Conventions. Functions that can fail return 0 or a negative errno; tl_last_error() then says in
 * words what happened, with the names and numbers in it. Outputs are untouched on failure. All
 * functions may be called from any thread at any time unless they say otherwise; one client may be
 * shared by all threads of a process. Times are nanoseconds: 0 means "do not wait", a negative time
 * "for ever". Option structs start with their size, so that a later version may add members: set
 * `.size = sizeof(struct)` and leave what you do not use zero.
 *
 * Errors that any function talking to the daemon may return, beside its own:
 *	-EINVAL		an argument is wrong; the text names it, its value and the limit
 *	-ENOTCONN	the daemon is gone or was restarted; a later call connects again by itself
 *	-ETIMEDOUT	the daemon did not answer within the request timeout of tl_connect_options
 *	-ENOMEM, -EMFILE, -ENFILE	this process is out of memory or descriptors
 *	-EPROTO		the daemon answered something that the protocol does not allow
 *
 * What needs no request (a get of what is mapped, tl_stat(), tl_list(), tl_get_status()) goes on
 * without the daemon: after it was killed it shows what was published then, until another daemon
 * listens at the address. That one starts with nothing: names are published anew, with versions
 * from 1.
 *
 * The daemon may be another user's: what it says, in messages, descriptors and shared memory, is
 * checked before it is used (-EPROTO). It owns the memory, though: if it truncates what it has
 *handed out, the next access is SIGBUS, and nobody can tell whether bytes are those that were
 *published.
 *
 * After fork() the child may go on reading and releasing every tensor that its parent held at that
 * moment: it has holds of its own on them. Its other calls use a connection of their own, made at
 * need. Drafts stay the parent's.
 */
#ifndef TENSORLEASE_H
#define TENSORLEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TL_VERSION_MAJOR 0
#define TL_VERSION_MINOR 1
#define TL_VERSION_PATCH 0

/* Limits of the protocol; what is beyond them is refused with -EINVAL. */
#define TL_NAME_MAX 255	     /* bytes of UTF-8 in a name */
#define TL_NDIM_MAX 64	     /* dimensions of a tensor */
#define TL_METADATA_MAX 1024 /* bytes of user metadata of a tensor */

/* Payloads start at addresses that are a multiple of this (DLPack asks for 256). */
#define TL_ALIGNMENT 256

#if defined(__GNUC__)
#define TL_API __attribute__((visibility("default")))
#else
#define TL_API
#endif

typedef struct tl_client tl_client; /* a connection to a daemon */
typedef struct tl_draft tl_draft;   /* a tensor still being written by its producer */

/* The library's version, "0.1.0". Static storage. */
TL_API const char *tl_version(void);

/*
 * What went wrong in the last call on this thread that failed, in words; "" if none did. The text
 * belongs to the library and stays until the next failing call on this thread.
 */
TL_API const char *tl_last_error(void);

/* ---- Connecting ---------------------------------------------------------------------------- */

enum {
	TL_CONNECT_AUTOSTART = 1, /* if none listens, start a daemon for this user; wait for it */
};

typedef struct tl_connect_options {
	size_t size;	     /* sizeof(tl_connect_options) */
	const char *address; /* the daemon's socket; NULL: see tl_connect() */
	uint32_t flags;	     /* TL_CONNECT_* */
	uint32_t reserved;   /* 0 */
	int64_t timeout_ns;  /* how long a request waits for its answer; 0: 10 seconds */
} tl_connect_options;

/*
 * Connects to the daemon at options->address, or $TENSORLEASE_SOCKET, or /run/tensorlease/socket if
 * it exists, or $XDG_RUNTIME_DIR/tensorlease/socket, or /tmp/tensorlease-UID/socket. On success
 * *out is yours; give it back with tl_close(). Blocks for two round trips, or until an autostarted
 * daemon listens. @options may be NULL.
 *
 * Whatever the address, whoever listens there must be trusted: our own (effective) user, root
 * (systemd listens as root for a service that it starts), the system user `tensorlease` of the
 * packaged service, or one of the uids in $TENSORLEASE_TRUST_UID, a list of numbers with commas
 * between. That is for a daemon that another user runs, such as an account that a group shares:
 * whoever runs it can read all that is published and forge what is got.
 *
 * The program that TL_CONNECT_AUTOSTART starts is $TENSORLEASE_DAEMON, or the first tensorleased of
 * those beside the library, where it was installed, beside the program and in $PATH that nobody
 * but root and us can write, nor replace.
 *
 * -ENOENT, -ECONNREFUSED: nobody listens there; -EACCES: the socket is not for us, the daemon is
 * another user's, or the directory of a daemon to be started is not ours alone;
 * -EPROTONOSUPPORT: the daemon speaks no version that we speak; -EUSERS: it has its maximum of
 * clients; -EINVAL: also if $TENSORLEASE_TRUST_UID was needed and is no such list.
 */
TL_API int tl_connect(tl_client **out, const tl_connect_options *options);

/*
 * Ends the use of @client: no other thread may be in a call on it. Tensors got through it stay
 * valid until their deleters are called; drafts not committed are aborted, and their handles may
 * only be given to tl_abort(). NULL is fine. @client is gone whatever is returned.
 *
 * A tensor on a GPU that can outlive this process does so only once the GPU has written it and the
 * daemon knows. tl_close() waits for that, at most the client's timeout, and says what was not to
 * be had: -ETIMEDOUT: the GPU has not written all of them yet, or the daemon did not answer; if
 * this process lives on until they are written they stay, else they are lost. -EIO: the GPU
 * failed to write some that were published through this connection; those are lost.
 * -ENOTCONN: the daemon went first. It waits neither for memory that dies with this process, nor
 * for a tensor whose publishing failed with -EINPROGRESS or whose memory is free again.
 *
 * exit(), or a return from main(), waits likewise, for all clients of the process that are still
 * open, but nobody can be told how that ended; a timeout of "for ever" is 10 seconds there. After
 * _exit(), a signal that ends the process, or an exit() in a forked child, what was not finished is
 * lost: call tl_close() first.
 */
TL_API int tl_close(tl_client *client);

/* ---- Publishing ---------------------------------------------------------------------------- */

typedef struct tl_spec {
	size_t size;	      /* sizeof(tl_spec) */
	const int64_t *shape; /* @ndim sizes, each >= 0; may be NULL if @ndim is 0 */
	int32_t ndim;	      /* 0 to TL_NDIM_MAX */
	DLDataType dtype;     /* any DLPack code 0 to 17 with its widths, lanes >= 1 */
	uint64_t flags;	      /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED or 0 */
	int64_t timeout_ns;   /* how long to wait for space if there is none */
} tl_spec;

/*
 * Makes a draft: memory for a tensor of that shape and type that will be called @name. Write
 * through tl_draft_tensor(), then tl_commit() or tl_abort(). The memory may hold old bytes of this
 * user. One round trip; none if the library has a prefetched draft because the same size was
 * published before. -ENOSPC: it does not fit into the daemon's capacity, or /dev/shm is full (after
 * waiting for spec->timeout_ns); -EDQUOT: over this user's quota; -EACCES: the name belongs to
 * another user.
 */
TL_API int tl_create(tl_client *client, const char *name, const tl_spec *spec, tl_draft **out);

/*
 * The draft as a writable C-contiguous tensor with explicit strides, byte_offset 0 and data at a
 * multiple of TL_ALIGNMENT (NULL if it has no bytes). Belongs to the draft.
 */
TL_API DLTensor *tl_draft_tensor(tl_draft *draft);

/*
 * Attaches @size opaque bytes (a timestamp, a frame id), at most TL_METADATA_MAX; replaces what was
 * attached before. Copied. -EINVAL: too many.
 */
TL_API int tl_draft_set_metadata(tl_draft *draft, const void *metadata, size_t size);

/*
 * Publishes the draft: from now on its name means this tensor, the tensor that it meant before is
 * retired, and nobody may write to the bytes any more. Always consumes @draft. With @version, waits
 * for the daemon and stores the tensor's version (from 1, never going back while that daemon runs);
 * with NULL it sends one message and returns at once: the tensor is visible as soon as the daemon
 * has read it. Should the daemon refuse, or end before it answered anything later, the next commit
 * or create on this client fails and says so. -EACCES: the name belongs to another user. -ESTALE:
 * the draft is another process's or lost.
 */
TL_API int tl_commit(tl_draft *draft, uint64_t *version);

/* Gives the draft's memory back unpublished. NULL is fine. Does not wait. */
TL_API void tl_abort(tl_draft *draft);

/*
 * Turns a draft into a managed, writable DLPack tensor for libraries that fill tensors of their own
 * kind. *out owns the draft (the handle is for tl_draft_set_stream() only, then): give it, or any
 * DLPack tensor over the same bytes, to tl_publish(), which then commits it without a copy; its
 * deleter aborts it otherwise.
 */
TL_API int tl_draft_export(tl_draft *draft, DLManagedTensorVersioned **out);

/*
 * Streams of a GPU, as DLPack's Python protocol numbers them; any other value is a CUstream (or
 * cudaStream_t) of the device's primary context. Tensors on the CPU have none.
 */
#define TL_STREAM_DEFAULT ((intptr_t)0)	   /* not said: the legacy default stream */
#define TL_STREAM_LEGACY ((intptr_t)1)	   /* CUDA's legacy default stream */
#define TL_STREAM_PER_THREAD ((intptr_t)2) /* CUDA's per-thread default stream */
#define TL_STREAM_NONE ((intptr_t)-1)	   /* no order is wanted: the caller sees to it */

enum {
	TL_PUBLISH_NO_COPY = 1, /* tl_publish(): if a copy is needed, fail with -ENOTSUP instead */
	TL_PUBLISH_SEALED = 2,	/* GPU: wait here until the stream has written the tensor, so that
				   no consumer ever has to: right for weights */
	TL_PUBLISH_STAGING = 4, /* GPU: what cannot be shared as it is may be copied, on the GPU */
};

typedef struct tl_put_options {
	size_t size;	      /* sizeof(tl_put_options) */
	const void *metadata; /* opaque bytes to attach, copied; may be NULL */
	size_t metadata_size; /* at most TL_METADATA_MAX */
	uint64_t flags; /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED if the source is so, else 0 */
	int64_t timeout_ns; /* how long to wait for space, for a copy, if there is none */
	uint32_t how;	    /* TL_PUBLISH_* */
	uint32_t reserved;  /* 0 */
	intptr_t stream;    /* GPU: TL_STREAM_*, or the stream on which the source was written */
} tl_put_options;

/*
 * Publishes a copy of @source. On the CPU: any strides (negative and 0 too), any byte_offset; the
 * copy is C-contiguous. On a GPU: C-contiguous only; the copy lies on the same GPU, in memory as
 * tl_alloc_cuda() makes it, and is queued on options->stream, as the caller's next writes to the
 * source must be. Create, copy, commit; errors and @version as there. -EINVAL: @source breaks a
 * rule of DLPack, the text says which; -ENOTSUP: its device is neither.
 */
TL_API int tl_put(tl_client *client, const char *name, const DLTensor *source,
		  const tl_put_options *options, uint64_t *version);

/*
 * Publishes @tensor by handing it over. If it lies in memory that this library handed out (an
 * exported draft, or a tensor got read-only, its whole extent) no byte is copied; from elsewhere on
 * the CPU it is copied once, and *copied (may be NULL) says so. On success @tensor is consumed: its
 * deleter has been called. On failure it is still yours. flags in @options are ignored: @tensor
 * carries its own.
 *
 * On a GPU (CUDA) nothing is copied unless options->how has TL_PUBLISH_STAGING: the allocation that
 * the tensor lies in is exported. On success the library owns @tensor; it calls its deleter, on any
 * thread, when no lease is left on what was published and no process has the memory mapped: the
 * memory must stay as it is until then. Consumers wait, on their streams, for what options->stream
 * had to do when this was called. Memory that is not of CUDA's virtual memory management dies with
 * this process, and the tensor with it: -ENODATA to who gets it afterwards. -ENOTSUP: that memory
 * cannot be shared; the text says why and what to do. -ENODEV: CUDA cannot be used here; the text
 * says what is missing. -ENOSPC, -EDQUOT: over what the daemon lets users have on that GPU. -EBUSY:
 * the stream is being captured into a graph. Deleters are called one after the other on one thread:
 * a slow one delays the others. If the daemon dies, nobody can say any more who holds what:
 * deleters are called at tl_close() then.
 *
 * -EINPROGRESS, on a GPU only: the daemon did not answer in time, or ended the connection first, so
 * that the tensor may have been published, or still be. @tensor is the library's then, as on
 * success, and its memory must stay as it is; its deleter is called when nobody can hold it.
 */
TL_API int tl_publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
		      const tl_put_options *options, bool *copied, uint64_t *version);

/* ---- Groups -------------------------------------------------------------------------------- */

/* Tensors still being written that will be published in one step. */
typedef struct tl_group tl_group;

typedef struct tl_group_item {
	const char *name;
	const int64_t *shape; /* @ndim sizes */
	int32_t ndim;	      /* 0 to TL_NDIM_MAX */
	DLDataType dtype;     /* as in tl_spec */
	uint64_t flags;	      /* as in tl_spec */
	const void *metadata; /* copied; may be NULL */
	size_t metadata_size; /* at most TL_METADATA_MAX */
	uint64_t reserved[2]; /* 0 */
} tl_group_item;

/*
 * Makes one draft for @count tensors (1 to 65,536), all in one segment: their memory comes back
 * when the last of them is gone. Write each through tl_group_tensor(), then tl_group_commit() or
 * tl_group_abort(). @items may go afterwards. Names must differ. Waits for space as @timeout_ns
 * says. One round trip. Errors as tl_create(), whose text names the item.
 */
TL_API int tl_group_create(tl_client *client, const tl_group_item *items, size_t count,
			   int64_t timeout_ns, tl_group **out);

/* The @index-th tensor, as tl_draft_tensor(); NULL: there is none. Belongs to the group. */
TL_API DLTensor *tl_group_tensor(tl_group *group, size_t index);

/*
 * Publishes all of them in one step: who gets one of them in its new version, and then another one,
 * gets that in its new version too. All or, on failure, none. Always consumes @group. One round
 * trip for all. Errors as tl_commit().
 */
TL_API int tl_group_commit(tl_group *group);

/* Gives the memory back unpublished. NULL is fine. */
TL_API void tl_group_abort(tl_group *group);

/*
 * Publishes copies of @count tensors, sources[i] as names[i], in one step: a group made, filled and
 * committed. @options hold for each of them. Sources as for tl_put() on the CPU. All or, on
 * failure, none; errors as tl_put() and tl_group_create(), whose text names the tensor.
 */
TL_API int tl_put_many(tl_client *client, const char *const *names, const DLTensor *const *sources,
		       size_t count, const tl_put_options *options);

/* ---- Getting ------------------------------------------------------------------------------- */

enum tl_mode {
	TL_MODE_READ = 0, /* shared and read-only: a write is a SIGSEGV; DLPack's READ_ONLY flag is
			     set */
	TL_MODE_COPY_ON_WRITE, /* writable; what you write is seen by this tensor alone, a page is
				  copied by the kernel when it is first written to */
};

enum {
	TL_GET_LOCAL = 1, /* only if it takes no request, no wait and no system call; else -EAGAIN:
			     for callers who hold a lock that they would give up for the full call
			   */
};

typedef struct tl_get_options {
	size_t size;	     /* sizeof(tl_get_options) */
	int64_t timeout_ns;  /* how long to wait for the name, or for a newer version */
	uint64_t newer_than; /* only a version above this will do; 0: any */
	int64_t spin_ns;     /* of that time, how long to spin before sleeping */
	enum tl_mode mode;
	uint32_t flags;	 /* TL_GET_* */
	intptr_t stream; /* GPU: TL_STREAM_*, or the stream that will use the tensor */
} tl_get_options;

/*
 * Takes a lease on the tensor that @name means now and hands it out in *out, C-contiguous, with
 * explicit strides, byte_offset 0, data at a multiple of TL_ALIGNMENT (NULL if it has no bytes). It
 * stays as it is until its deleter is called, on any thread, also after tl_close(), whatever
 * happens to the name. The first get of a segment of memory is one round trip, later ones make no
 * system call. Waits as options->timeout_ns says, without asking the daemon. -ENOENT: no tensor has
 * that name (at once, if the timeout is 0); -ETIMEDOUT: none came in time, or none newer than
 * options->newer_than; -EAGAIN: there is one but it is not newer, and the timeout is 0.
 *
 * A tensor on a GPU is handed out with the device's number in this process. options->stream is made
 * to wait for the producer's work, at every get; nothing blocks. The deleter does not wait either:
 * it notes what is queued on that stream by then, and a thread of the library gives up the lease
 * when that is done. So use the tensor on that stream, or order other streams with it. Read-only is
 * enforced by the GPU for memory of tl_alloc_cuda(), and otherwise a promise. -ENODATA: the process
 * that published it is gone and its memory with it (after waiting for a newer version as the
 * timeout says); -ENODEV: no CUDA here, or not that GPU: the text names its UUID; -ENOTSUP: its
 * mode is copy-on-write; -EBUSY: the stream is being captured into a graph.
 */
TL_API int tl_get(tl_client *client, const char *name, const tl_get_options *options,
		  DLManagedTensorVersioned **out);

/*
 * Gets @count tensors, into out[0] to out[count - 1], as they were at one moment: never some from
 * before and some from after a tl_group_commit(). Each has its own lease and deleter. @options as
 * for tl_get(), but newer_than, which must be 0; waits until all names are there. All or, on
 * failure, none. Errors as tl_get(), whose text names the tensor.
 */
TL_API int tl_get_many(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, DLManagedTensorVersioned **out);

/*
 * Takes another lease on the tensor of @held, which tl_get() or this handed out, in another mode or
 * the same: the same version, whatever its name means by now. *out is released on its own.
 * Read-only: no request; copy-on-write: a mapping of its own, and one round trip for the first of a
 * segment. -EINVAL: @held did not come from tl_get(); -ENOTCONN: the daemon that knows the tensor
 * is gone and it cannot be mapped anew; -EOVERFLOW: it is held too often.
 */
TL_API int tl_remap(const DLManagedTensorVersioned *held, enum tl_mode mode,
		    DLManagedTensorVersioned **out);

/*
 * As tl_remap(), read-only, for use on another stream than @held was got for: @stream waits for the
 * producer's work, and the deleter of *out looks at @stream. Not used on the CPU. -ENODATA,
 * -ENODEV: as tl_get().
 */
TL_API int tl_remap_stream(const DLManagedTensorVersioned *held, intptr_t stream,
			   DLManagedTensorVersioned **out);

typedef struct tl_wait_item {
	const char *name;
	uint64_t newer_than; /* only a version above this will do; 0: any */
	uint64_t reserved;   /* 0 */
} tl_wait_item;

/*
 * Waits until one of @count names means a tensor that is new enough and stores its index in *which
 * (the first, if several do). Takes no lease: the tensor may be another one by the time of a
 * tl_get(). Sleeps as tl_get() does, for at most @timeout_ns; connects again as that does. Ends
 * early if *interrupt (may be NULL) is not, or no longer,
 * @interrupt_value: store another value there, then wake it with FUTEX_WAKE_PRIVATE. With more than
 * 126 names, or a kernel before 5.16, it looks every 5 ms instead of sleeping. @count may be 0.
 * -ETIMEDOUT: none came in time; -ECANCELED: *interrupt changed; -EINTR: a signal handler ran.
 */
TL_API int tl_wait_many(tl_client *client, const tl_wait_item *items, size_t count,
			const uint32_t *interrupt, uint32_t interrupt_value, int64_t timeout_ns,
			size_t *which);

/* What is known of a tensor. */
typedef struct tl_info {
	char name[TL_NAME_MAX + 1];
	uint64_t version;
	uint64_t nbytes;       /* of its payload */
	uint64_t committed_ns; /* when, in nanoseconds of CLOCK_REALTIME */
	uint64_t flags;	       /* DLPack flags a get would show */
	DLDataType dtype;
	DLDevice device; /* of a GPU that this process has not used through the library: number -1
			  */
	uint32_t uid;	 /* the user who published it */
	int32_t ndim;
	int64_t shape[TL_NDIM_MAX];
	uint32_t metadata_size;
	unsigned char metadata[TL_METADATA_MAX];
	unsigned char device_uuid[16]; /* the GPU's; 0 if on the CPU */
	bool lost;		       /* its memory is gone with the process that published it */
	uint64_t reserved[16];	       /* 0; for later versions */
} tl_info;

/*
 * Tells about a tensor that tl_get() handed out, metadata included; valid until its deleter is
 * called. -EINVAL: it did not come from tl_get(). -ENOTCONN: its daemon ended the connection; the
 * tensor stays readable.
 */
TL_API int tl_tensor_info(const DLManagedTensorVersioned *tensor, tl_info *info);

/*
 * Is the tensor, which tl_get() handed out, still there? 0, or -ENODATA: it lay in memory on a GPU
 * that was its producer's, and that is gone; do not use it. Always 0 for tensors on the CPU. No
 * request. -EINVAL: it did not come from tl_get().
 */
TL_API int tl_tensor_check(const DLManagedTensorVersioned *tensor);

/* ---- GPUs ---------------------------------------------------------------------------------- */

/*
 * As tl_create(), on GPU @device (its number in this process, as CUDA counts): memory of the
 * library's own, made with CUDA's virtual memory management in units of 2 MiB, and filled in place:
 * tl_draft_tensor() has its device pointer. What is published so outlives this process, and
 * consumers map it read-only. Recycled: a producer that publishes the same size again and again
 * settles into a fixed set of allocations. Commit it with tl_commit() after tl_draft_set_stream().
 * Waits for room as spec->timeout_ns says. Errors as tl_create(); -ENODEV: CUDA cannot be used
 * here, or there is no such device; -ENOTSUP: this driver or GPU has no such memory, or none that
 * can be exported; -ENOMEM: the GPU's memory is full.
 */
TL_API int tl_alloc_cuda(tl_client *client, const char *name, const tl_spec *spec, int device,
			 tl_draft **out);

/*
 * Says on which stream the draft, which is on a GPU, is written (TL_STREAM_DEFAULT if not said):
 * consumers wait for what is queued there when it is committed. TL_STREAM_NONE: it is written
 * already. -EINVAL: the draft is on the CPU.
 */
TL_API int tl_draft_set_stream(tl_draft *draft, intptr_t stream);

/* What opens memory on a GPU in another process, for programs that use CUDA's own calls. */
typedef struct tl_ipc_handle {
	size_t size;		       /* sizeof(tl_ipc_handle) */
	unsigned char device_uuid[16]; /* cudaDeviceProp.uuid, cuDeviceGetUuid_v2() */
	unsigned char memory[64];      /* cudaIpcMemHandle_t, CUipcMemHandle */
	unsigned char event[64];       /* cudaIpcEventHandle_t, if has_event */
	uint64_t allocation_size;      /* bytes of the allocation that the handle opens */
	uint64_t offset;	       /* of the tensor in it, in bytes */
	bool has_event;
} tl_ipc_handle;

/*
 * Publishes a tensor by a handle that the caller made with cudaIpcGetMemHandle(). Needs no CUDA in
 * the library. The memory must stay until @freed(@context) is called, on any thread, when no lease
 * is left and no client of the library has it mapped. With an event consumers wait for it at every
 * get; it must stay as long. @spec has shape, type and flags. If the call fails @freed is not
 * called, but after -EINPROGRESS it is. Errors as tl_publish(). -EINVAL: the tensor does not fit
 * into the allocation.
 */
TL_API int tl_publish_ipc_handle(tl_client *client, const char *name, const tl_ipc_handle *handle,
				 const tl_spec *spec, const tl_put_options *options,
				 void (*freed)(void *context), void *context, uint64_t *version);

/*
 * Gets a tensor on a GPU for a caller who opens it with cudaIpcOpenMemHandle(). Needs no CUDA in
 * the library and opens nothing: the tensor in *out has no data and device number -1; its data will
 * be what the caller opens plus handle->offset. Close that before calling the deleter, which gives
 * up the lease at once. options->stream and mode are not used. Errors as tl_get(); -ENOTSUP: it is
 * memory that such a handle cannot open (tl_alloc_cuda(), or of a virtual memory allocator).
 */
TL_API int tl_get_ipc_handle(tl_client *client, const char *name, const tl_get_options *options,
			     tl_ipc_handle *handle, DLManagedTensorVersioned **out);

typedef struct tl_cuda_info {
	size_t size;		/* sizeof(tl_cuda_info), set by the caller */
	int32_t count;		/* GPUs that this process sees */
	int32_t driver_version; /* of the CUDA that the driver implements: 12040 is 12.4 */
	unsigned char uuid[16];
	char name[128];
	uint64_t total_bytes;
	int32_t compute_major, compute_minor;
	bool integrated; /* shares the CPU's memory, as Tegra's do */
	bool vmm;	 /* tl_alloc_cuda() can work */
	bool legacy_ipc; /* a plain allocation said that it can be exported */
	bool memory_pools;
} tl_cuda_info;

/*
 * Tells about GPU @device of this process. Loads and initialises CUDA. -ENODEV: CUDA cannot be used
 * here (the text says what is missing), or there is no such device.
 */
TL_API int tl_get_cuda_info(int device, tl_cuda_info *info);

typedef struct tl_device_usage {
	unsigned char uuid[16];
	uint64_t bytes_used;	/* of allocations that are published, or kept for drafts */
	uint64_t capacity;	/* UINT64_MAX: no limit */
	uint64_t user_capacity; /* of each user; UINT64_MAX: no limit */
	uint32_t segments;
} tl_device_usage;

/* Calls @visit for each GPU on which the daemon counts something; a request for each. As tl_list().
 */
TL_API int tl_list_devices(tl_client *client,
			   int (*visit)(const tl_device_usage *usage, void *context),
			   void *context);

/* ---- Looking around ------------------------------------------------------------------------ */

/* Tells about the tensor that @name means now. No request. -ENOENT: none. */
TL_API int tl_stat(tl_client *client, const char *name, tl_info *info);

/*
 * Calls @visit for each tensor whose name starts with @prefix ("" or NULL: all), in no order; stops
 * when it returns something other than 0, and returns that. No request; @info is valid during the
 * call. Tensors published or deleted meanwhile may be told of or not.
 */
TL_API int tl_list(tl_client *client, const char *prefix,
		   int (*visit)(const tl_info *info, void *context), void *context);

/*
 * Forgets @name and retires its tensor; who holds it keeps it. The name's version goes on counting
 * if it is published again. One round trip. -ENOENT: no such name; -EACCES: it belongs to another
 * user.
 */
TL_API int tl_delete(tl_client *client, const char *name);

typedef struct tl_status {
	size_t size; /* sizeof(tl_status), set by the caller */
	char address[108];
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t capacity;   /* bytes of segments the daemon may make */
	uint64_t bytes_used; /* bytes of segments there are, warm ones included */
	uint64_t bytes_warm; /* bytes kept for the next tensor of the same size */
	uint64_t commits;    /* since it started */
	uint32_t tensors;    /* that a name means now */
	uint32_t retired;    /* that no name means any more but somebody holds */
	uint32_t drafts;
	uint32_t segments;
	uint32_t clients;
	uint32_t max_tensors;
	uint32_t max_clients;
	uint32_t daemon_pid;
} tl_status;

/*
 * Tells about the daemon. No request: if it was killed and no other one has come yet, this is what
 * it left; started_ns differs from the one before when another one has come.
 */
TL_API int tl_get_status(tl_client *client, tl_status *status);

typedef struct tl_client_info {
	uint64_t id;  /* never used twice by one daemon */
	uint32_t pid; /* who connected, as the kernel said then; 0 if in another PID namespace */
	uint32_t uid;
	uint32_t gid;
	uint32_t drafts;
	uint64_t leases;       /* sum of its ledger */
	uint64_t tensors_held; /* tensors with at least one lease */
	uint64_t bytes_held;   /* payload of those */
	char label[16];	       /* what the client calls itself: the program's name */
} tl_client_info;

/* Calls @visit for each client of the daemon; a request for each. Returns as tl_list() does. */
TL_API int tl_list_clients(tl_client *client,
			   int (*visit)(const tl_client_info *info, void *context), void *context);

typedef struct tl_holding {
	char name[TL_NAME_MAX + 1];
	uint64_t version;
	uint64_t nbytes;
	uint64_t leases;
	bool retired; /* the name means something else by now, or nothing */
} tl_holding;

/* Calls @visit for each tensor that the client with that id holds; a request for each. */
TL_API int tl_list_holdings(tl_client *client, uint64_t client_id,
			    int (*visit)(const tl_holding *holding, void *context), void *context);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_H */
