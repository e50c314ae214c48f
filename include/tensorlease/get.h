/* SPDX-License-Identifier: Apache-2.0 */
/* Getting tensors, and waiting for them. A part of <tensorlease/tensorlease.h>. */
#ifndef TENSORLEASE_GET_H
#define TENSORLEASE_GET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/base.h>
#include <tensorlease/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Getting ------------------------------------------------------------------------------- */

/* enum tl_mode - access to a tensor that was got */
enum tl_mode {
	/* The memory is shared and read-only: a write raises SIGSEGV. DLPack's READ_ONLY flag is
	 * set. */
	TL_MODE_READ = 0,
	/* The memory may be written. The changes are visible through this tensor alone: the kernel
	 * copies a page at the first write to it. */
	TL_MODE_COPY_ON_WRITE,
};

/* TL_GET_* - flags of tl_get_options */
enum {
	/* Succeed only if that takes no request, no wait and no system call, else fail with
	 * -EDEADLK. This is for a caller that holds a lock under which it must not block. */
	TL_GET_LOCAL = 1,
	/* The tensor is wanted on options->device. If it is on another one it is copied, and its
	 * DLPack flags have IS_COPIED. Not together with TL_GET_LOCAL. */
	TL_GET_DEVICE = 2,
};

/* tl_get_options - how to get a tensor */
typedef struct tl_get_options {
	size_t size;	     /* sizeof(tl_get_options) */
	int64_t timeout_ns;  /* how long to wait for the name, or for a version that is newer */
	uint64_t newer_than; /* accept only a version above this one; 0: any */
	int64_t spin_ns;     /* for how much of that time to spin before sleeping */
	enum tl_mode mode;   /* access to the tensor */
	uint32_t flags;	     /* TL_GET_* */
	intptr_t stream; /* on a GPU: TL_STREAM_*, or the stream on which the tensor will be used */
	DLDevice device; /* with TL_GET_DEVICE: where it is wanted, the CPU or a GPU of CUDA */
} tl_get_options;

/*
 * tl_get - take a lease on the tensor that a name means now
 *
 * The tensor is C-contiguous, unless it is on a GPU and was published with strides of its own. It
 * has explicit strides, a byte_offset of 0 and data, on the CPU at a multiple of TL_ALIGNMENT, or
 * NULL if it has no bytes. It stays as it is until its deleter is called, even if the name is
 * replaced or deleted, and after tl_close().
 *
 * The device of a tensor on a GPU has the number by which this process knows that GPU. What
 * options->stream does after a get comes after the producer's work: the call waits until another
 * process has written the tensor, and for work of this process the stream waits. The deleter does
 * not wait. It notes the work that is queued on that stream by then, and a thread of the library
 * gives up the lease when that work is done. So use the tensor on that stream, or order
 * other streams with it, and destroy that stream only after the deleter has returned. A stream that
 * is being captured into a graph then must not be destroyed: the library notes its work some time
 * after the capture has ended. The GPU enforces that memory which tl_create() made is only read.
 * Other memory of a GPU is writable for consumers, who must not write to it.
 *
 * With TL_GET_DEVICE a tensor on another device is copied, and only then: the copy is this
 * process's alone and writable. It is made on options->stream if it is on a GPU, and the lease on
 * the original is given up when it is made. With TL_STREAM_NONE, or on the CPU, the call waits
 * until it is. A copy on a GPU lies in memory as tl_create() makes it there and counts as that; one
 * on the CPU is C-contiguous and lies in memory of this process.
 *
 * Ownership: *out is yours; give it back by calling its deleter, on any thread.
 * Blocking: the first get of a segment is one round trip; later ones make no system call. If there
 * is no such name, or no version that is newer than options->newer_than, the call waits for at most
 * options->timeout_ns without asking the daemon. If the connection ends or has ended, it goes on
 * trying to connect until that time is over; a daemon that takes the connection then has the
 * client's timeout for its answers, even if the call's is shorter. A client that has waited once
 * has a thread, which sleeps until the connection ends. Unless options->stream is TL_STREAM_NONE
 * the call also waits for work of another process that writes a GPU tensor, for what is left of
 * options->timeout_ns, or at most the client's timeout if that is 0. If that process is killed it
 * fails with -ENODATA. As long it waits for memory that this process is just closing, which may
 * wait for the GPU, or that another thread is opening.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name, and the timeout is 0
 *	-EAGAIN		the tensor is not newer than options->newer_than, and the timeout is 0
 *	-EDEADLK	TL_GET_LOCAL was given, and the call would have to do more
 *	-ETIMEDOUT	also: no tensor came in time, or none that is newer, or its producer has not
 *			finished it, or its memory on the GPU could not be opened so soon
 *	-ENOTCONN	also: the time is over, and there is no daemon; the text says since when
 *	-EOVERFLOW	this process holds the tensor too often
 *	-ENOSPC		all clients have as many pieces of memory mapped as they may
 *	-EDQUOT		the same of this user
 *	-ENODATA	the process that published the tensor has ended, and its memory on the GPU
 *			with it; no newer version came in time
 *	-ENODEV		CUDA cannot be used here, or the tensor is on a GPU that this process does
 *			not see; the text names its UUID
 *	-ENOTSUP	the tensor is on a GPU, where there is no copy-on-write, or it was published
 *			by a handle with an event that CUDA cannot open here
 *	-EBUSY		the stream is being captured into a graph, or a copy from a GPU is wanted
 *			while a blocking stream is captured there
 *	-EINVAL		also: the stream is of another GPU than the tensor, or of another context
 *			than its primary one, or both TL_GET_LOCAL and TL_GET_DEVICE were given
 * Since: 0.1
 */
TL_API int tl_get(tl_client *client, const char *name, const tl_get_options *options,
		  DLManagedTensorVersioned **out);

/*
 * tl_get_many - take leases on several tensors as they were at one moment
 *
 * Stores the tensors in out[0] to out[@count - 1]; @count is at most 65,536. They are never
 * partly from before and partly from after a tl_group_commit(). Each has its lease and deleter. The
 * options are those of tl_get(), but newer_than must be 0, and of the flags only TL_GET_DEVICE is
 * known. The call waits until all of the names are there and no tensor's memory has gone with its
 * producer.
 *
 * Ownership: each of them is yours; give it back by calling its deleter, on any thread.
 * Blocking: as tl_get() does.
 * Threads: any.
 * Returns: 0, or an error of tl_get(), whose text names the tensor; then @out is unchanged.
 * Since: 0.1
 */
TL_API int tl_get_many(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, DLManagedTensorVersioned **out);

/*
 * tl_remap - take another lease on a tensor that is held
 *
 * The new lease is on the same version, even if the name means another one by now, in the same mode
 * as @held or in another one. Once the daemon has ended, a copy-on-write tensor may be a copy from
 * the beginning; its DLPack flags have IS_COPIED then. With TL_MODE_READ a copy on another device
 * (TL_GET_DEVICE) gets another tensor over the same memory, which is as writable as @held; another
 * mode is refused with -ENOTSUP.
 *
 * Ownership: *out is yours and is released on its own; @held stays as it is.
 * Blocking: never for read-only; a copy-on-write mapping takes one round trip for the first of a
 * segment.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-EINVAL		@held did not come from this library, or there is no such mode
 *	-ENOTCONN	the daemon that knows the tensor has ended, and the tensor cannot be mapped
 *			anew
 *	-EOVERFLOW	this process holds the tensor too often
 *	-ENOSPC, -EDQUOT, -ENODATA, -ENOTSUP	as tl_get()
 * Since: 0.1
 */
TL_API int tl_remap(const DLManagedTensorVersioned *held, enum tl_mode mode,
		    DLManagedTensorVersioned **out);

/* TL_TOKEN_SIZE - bytes of a token that hands a tensor on */
#define TL_TOKEN_SIZE 32

/* TL_HANDOVER_* - flags of tl_handover() */
enum {
	/* The token may be received any number of times until its time has passed. */
	TL_HANDOVER_MANY = 1,
};

/*
 * tl_handover - hand on a tensor that is held
 *
 * Stores a token that may travel to any process of this machine, by a pipe or a queue, for
 * tl_receive() there. The receiver gets this tensor, even if its name means another one by then, or
 * none. The daemon keeps the tensor until it was received once, or with TL_HANDOVER_MANY however
 * often; until @ttl_ns have passed (0: for ever); or until the connection of the client that got
 * @tensor ends, which it does with the process. @tensor may be released at once. Each tensor that
 * is kept so counts in the share `waits` of the user, and a client has 1,024 of them at most.
 *
 * Ownership: @tensor stays yours; @token is filled.
 * Blocking: for a request to the daemon.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-EINVAL		@tensor did not come from tl_get(), or is of another daemon or namespace
 *			than @client; or @ttl_ns or @flags are out of their bounds
 *	-ENOTSUP	@tensor is a copy of TL_GET_DEVICE, or a part of a stream's item on a GPU
 *	-ENOTCONN	the daemon that knows the tensor has ended, or this process has inherited
 *			the tensor by fork()
 *	-EDQUOT, -ENOSPC	too many tensors wait to be received
 * Since: 0.2
 */
TL_API int tl_handover(tl_client *client, const DLManagedTensorVersioned *tensor, int64_t ttl_ns,
		       uint32_t flags, unsigned char token[TL_TOKEN_SIZE]);

/*
 * tl_receive - take a lease on a tensor that was handed on
 *
 * The tensor is as tl_get() would have returned it to the process that handed it on. Of @options
 * only `mode` and `stream` may be set; NULL means defaults. A token that was received already works
 * again as long as any process holds the tensor.
 *
 * Ownership: *out is yours; give it back by calling its deleter, on any thread.
 * Blocking: for a request to the daemon, and one more for the first tensor of a segment.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		the tensor is not there any more, or @token is of another daemon or
 *			namespace than @client
 *	-EINVAL		@token is no token, or @options are wrong
 *	-EPROTO		the tensor is a part of a stream's item, which its producer has damaged
 *	-EOVERFLOW	this process holds the tensor too often
 *	-ENODATA, -ENODEV, -ENOTSUP, -EBUSY	as tl_get(), for a tensor on a GPU
 * Since: 0.2
 */
TL_API int tl_receive(tl_client *client, const unsigned char token[TL_TOKEN_SIZE],
		      const tl_get_options *options, DLManagedTensorVersioned **out);

/* tl_gather_out - where tl_gather() copies to */
typedef struct tl_gather_out {
	DLTensor *tensor;	 /* in host memory, writable, in C order; shape[0] is the number of
				    tensors */
	const uint64_t *offsets; /* NULL: a tensor is a row of it; else where, in the bytes of each
				    tensor, those for its row begin */
} tl_gather_out;

/* tl_gather_options - how to gather */
typedef struct tl_gather_options {
	size_t size;	    /* sizeof(tl_gather_options) */
	int64_t timeout_ns; /* to wait until all names exist, as for tl_get() */
	uint32_t threads;   /* so many copy; 0: as the size and the processors of this process are
			       worth, 4 at most */
	uint32_t reserved;  /* 0 */
} tl_gather_options;

/*
 * tl_gather - copy many tensors, one behind the other, into one
 *
 * The tensors are got as of one moment, as by tl_get_many(), copied and released. Row i of each of
 * @outs is copied from the tensor names[i]: all of it, which must have the dtype and the shape of a
 * row; or, with offsets, as many bytes of it as a row has. With several outs each tensor is leased
 * once and gives a row to each. The same name may come more than once. A batch of samples that lie
 * in larger tensors is made in this way.
 *
 * Ownership: all arguments stay yours, and must stay during the call.
 * Blocking: as tl_get_many(), and for the time of the copy. 8 MiB and more are copied by several
 * threads, which have ended when it returns.
 * Threads: any.
 * Returns: 0, a common error, an error of tl_get_many(), or
 *	-EINVAL		also: an out is not in C order or has another number of rows; a tensor is
 *			not like a row, or too short. Nothing was copied
 *	-ENOTSUP	a tensor or an out is on a GPU
 * Since: 0.2
 */
TL_API int tl_gather(tl_client *client, const char *const *names, size_t count,
		     const tl_gather_out *outs, size_t nouts, const tl_gather_options *options);

/*
 * TL_WAIT_PREFIX: `name` is a prefix, a path as for tl_list(): wait until there is a tensor below
 * it;
 * "": until there is any. newer_than must be 0.
 */
#define TL_WAIT_PREFIX 1

/* tl_wait_item - one name to wait for */
typedef struct tl_wait_item {
	const char *name;    /* to wait for */
	uint64_t newer_than; /* accept only a version above this one; 0: any */
	uint64_t flags;	     /* TL_WAIT_PREFIX */
} tl_wait_item;

/* tl_wait_options - how to wait for names */
typedef struct tl_wait_options {
	size_t size;		   /* sizeof(tl_wait_options) */
	int64_t timeout_ns;	   /* for how long; 0: only look; < 0: for ever */
	const uint32_t *interrupt; /* a word that ends the wait, or NULL */
	uint32_t interrupt_value;  /* its value while the wait is to go on */
	uint32_t reserved;	   /* 0 */
} tl_wait_options;

/*
 * tl_wait_many - wait until one of several names means a tensor that is new enough
 *
 * Stores the index of that name in *which; the first one, if there are several. No lease is taken,
 * so the name may mean another tensor by the time of a tl_get().
 *
 * The wait can be ended from outside: it ends early if *options->interrupt is not, or no longer,
 * options->interrupt_value. Store another value there and wake it with FUTEX_WAKE_PRIVATE.
 *
 * Ownership: @items, the names in them and the word stay yours and must stay during the call.
 * Blocking: for at most options->timeout_ns. It sleeps as tl_get() does, and connects again as that
 * does. A prefix that the client uses again and again is watched for it, as tl_list() says; with
 * another prefix it looks through all names whenever a new one appears. With more than 125 names,
 * or on a kernel before 5.16, it looks every 5 ms instead. @count may be 0: then the call only
 * waits for options->interrupt.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ETIMEDOUT	also: none came in time
 *	-ECANCELED	*options->interrupt is not options->interrupt_value
 *	-EINTR		a signal handler ran while the call slept; one with SA_RESTART need not end
 *			the wait, and one that runs before the sleep does not.
 *			options->interrupt ends it for certain
 * Since: 0.1
 */
TL_API int tl_wait_many(tl_client *client, const tl_wait_item *items, size_t count,
			const tl_wait_options *options, size_t *which);

/* tl_identity - who a client is */
typedef struct tl_identity {
	uint64_t id;		   /* as in tl_client_info; 0: not known, and the rest is 0 */
	uint64_t since_ns;	   /* when it connected, by CLOCK_REALTIME */
	uint32_t pid;		   /* its process; 0 if in another PID namespace */
	uint32_t uid;		   /* its user */
	char label[32];		   /* its own name for itself: label of tl_connect_options */
	bool gone;		   /* its connection has ended */
	unsigned char reserved[7]; /* 0 */
} tl_identity;

/* tl_info - a description of a tensor */
typedef struct tl_info {
	size_t size;		       /* sizeof(tl_info) */
	char name[TL_NAME_MAX + 1];    /* under which it was published */
	uint64_t version;	       /* under that name, from 1 */
	uint64_t nbytes;	       /* bytes of the tensor itself, without metadata */
	uint64_t committed_ns;	       /* when it was published, by CLOCK_REALTIME */
	uint64_t dlpack_flags;	       /* of the tensor; without one, those that a get would show */
	DLDataType dtype;	       /* of its elements */
	uint32_t uid;		       /* the user who published it */
	DLDevice device;	       /* a GPU that this process has not used has the number -1 */
	unsigned char device_uuid[16]; /* of the GPU; 0 on the CPU */
	int32_t ndim;		       /* how many dimensions, and sizes in @shape */
	uint32_t metadata_size;	       /* how many bytes of @metadata */
	int64_t shape[TL_NDIM_MAX];    /* sizes of the dimensions */
	unsigned char metadata[TL_METADATA_MAX]; /* the bytes that its producer attached */
	bool lost;		   /* its memory is lost with the process that published it */
	unsigned char reserved[3]; /* 0 */
	uint32_t lifetime;	   /* TL_LIFETIME_* */
	int64_t ttl_ns;		   /* the rest of its time to live, at least 1; 0: it has none */
	uint32_t ring;	    /* how many slots the name's ring has; 0: none (TL_RING_*). Since 0.2 */
	uint32_t reserved2; /* 0 */
	int64_t strides[TL_NDIM_MAX]; /* in elements; those of C order unless it is on a GPU */
	/* who published the name last, by tl_stat() and tl_list(); by others, not known. Since 0.2
	 */
	tl_identity publisher;
} tl_info;

/*
 * tl_tensor_info - describe a tensor that is held
 *
 * Shows the metadata too, which DLPack has no place for. Set info->size before the call.
 *
 * Ownership: *info is yours, and a copy; @tensor must not have been released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-EINVAL		@tensor did not come from tl_get(), or info->size is too small
 *	-ENOTCONN	the daemon that knows the tensor ended the connection; the tensor stays
 *			readable
 * Since: 0.1
 */
TL_API int tl_tensor_info(const DLManagedTensorVersioned *tensor, tl_info *info);

/*
 * tl_tensor_version - get the version of a tensor that is held
 *
 * As tl_tensor_info(), for the version alone.
 *
 * Ownership: *version is yours; @tensor must not have been released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-EINVAL		@tensor did not come from tl_get(), or @version is NULL
 *	-ENOTCONN	as tl_tensor_info()
 * Since: 0.2
 */
TL_API int tl_tensor_version(const DLManagedTensorVersioned *tensor, uint64_t *version);

/*
 * tl_tensor_check - check that the memory of a tensor is still there
 *
 * A tensor on a GPU may lie in its producer's memory, which goes with the producer. A tensor on the
 * CPU is always there.
 *
 * Ownership: @tensor must not have been released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-ENODATA	the memory is lost with its producer: do not use it
 *	-EINVAL		@tensor did not come from tl_get()
 * Since: 0.1
 */
TL_API int tl_tensor_check(const DLManagedTensorVersioned *tensor);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_GET_H */
