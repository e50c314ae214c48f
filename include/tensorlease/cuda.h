/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease_cuda - functions for GPUs only
 *
 * OVERVIEW
 *
 * Tensors on GPUs are created, published and got with the functions of <tensorlease/tensorlease.h>:
 * tl_create() with `.device = { kDLCUDA, 0 }` makes memory on GPU 0, tl_put() copies a tensor where
 * it lies, tl_publish() shares it in place, and tl_get() maps it into another process. This header
 * has the rest: streams, the handles of CUDA's own calls, and the properties of the GPUs.
 *
 * The header needs no header of CUDA. The library needs no CUDA at build time and loads the driver,
 * libcuda.so.1, at the first call that uses a GPU. Devices have the numbers that CUDA gives them in
 * this process; other processes may number them otherwise, so a UUID identifies a GPU.
 *
 * SHARED MEMORY OF GPUS
 *
 * Memory that tl_create() makes outlives its producer. This library maps it read-only into
 * consumers, where a kernel that writes to it fails. Memory of cudaMalloc() and of stream-ordered
 * pools is mapped writable into consumers, even if DLPack's flag says read-only, and dies with its
 * producer. Neither is protected from a consumer that means harm: CUDA lets whoever has opened
 * memory map it writable. While any process has it mapped it must not be freed:
 * the library calls the deleter of a published tensor when that is safe.
 *
 * After fork() CUDA does not work in the child. Streams must belong to the device's primary
 * context, as all streams of CUDA's runtime do. Call no function of the library and no deleter in a
 * host function (cuLaunchHostFunc), where CUDA takes no calls and may deadlock. If a driver refuses
 * a deleter's calls there, the lease ends when the stream's work has ended all the same; that
 * stream must stay until then.
 */
#ifndef TENSORLEASE_CUDA_H
#define TENSORLEASE_CUDA_H

#include <tensorlease/tensorlease.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Streams ------------------------------------------------------------------------------- */

/*
 * tl_draft_set_stream - say on which stream a draft is written
 *
 * Gets wait for the work that is queued on @stream when the draft is committed (tl_get()). Without
 * this call it is TL_STREAM_DEFAULT. TL_STREAM_NONE says that the tensor is written already.
 * TL_STREAM_PER_THREAD is the stream of the thread that makes this call, even if another one
 * commits.
 *
 * Ownership: the stream must exist until the draft is committed or aborted. That of an exported
 * draft must exist until its deleter has returned, or tl_publish() has taken its tensor over. A
 * stream on which a draft is given up while it is being captured into a graph must not be
 * destroyed: the memory is used again some time after the capture has ended.
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, or
 *	-EINVAL		@draft is NULL or on the CPU
 * Since: 0.1
 */
TL_API int tl_draft_set_stream(tl_draft *draft, intptr_t stream);

/*
 * tl_remap_stream - take another lease on a tensor that is held, for another stream
 *
 * Works as tl_remap() with TL_MODE_READ does. What @stream does from now on comes after the
 * producer's work, and the deleter of *out notes the work that is queued on @stream. For a tensor
 * on the CPU @stream means nothing.
 *
 * Ownership: *out is yours and is released on its own; @held stays as it is.
 * Blocking: as tl_get(), until another process has written the tensor, for at most @timeout_ns; 0
 * stands for the client's timeout, and < 0 for no limit.
 * Threads: any.
 * Returns: 0, an error of tl_remap(), or
 *	-ETIMEDOUT	the tensor's producer has not finished it in time
 *	-ENODEV		as tl_get()
 *	-EBUSY		the stream is being captured into a graph
 *	-EINVAL		also: the stream is of another GPU than the tensor, or of another context
 *			than its primary one
 * Since: 0.1
 */
TL_API int tl_remap_stream(const DLManagedTensorVersioned *held, intptr_t stream,
			   int64_t timeout_ns, DLManagedTensorVersioned **out);

/*
 * tl_group_set_stream - say on which stream the tensors of a group that are on a GPU are written
 *
 * Works as tl_draft_set_stream() does. With @sealed tl_group_commit() waits for the stream, so that
 * no consumer has to. A group on several GPUs cannot name a stream that belongs to one of them.
 *
 * Ownership: the stream must exist until the group is committed or aborted.
 * Blocking: never.
 * Threads: any, but only one at a time on a group.
 * Returns: 0, or
 *	-EINVAL		@group is NULL
 * Since: 0.2
 */
TL_API int tl_group_set_stream(tl_group *group, intptr_t stream, bool sealed);

/*
 * tl_group_copy - copy tensors into those of a group
 *
 * Copies sources[i] into tensor i, which has the same shape and type, unless sources[i] is NULL.
 * Tensors of the group on a GPU are copied there on the group's stream, from that GPU or from the
 * CPU. All sources are checked before the first is copied.
 *
 * Ownership: @sources stay yours; those on a GPU must stay as they are until the stream is done.
 * Blocking: for copies from the CPU.
 * Threads: any, but only one at a time on a group.
 * Returns: 0, a common error, or
 *	-EINVAL		a source breaks a rule of DLPack, or its shape, type or device does not fit
 *			that of its tensor, which the text names
 *	-ENOTSUP	a source is on a device that is not known, or is not C-contiguous though its
 *			tensor is on a GPU
 * Since: 0.2
 */
TL_API int tl_group_copy(tl_group *group, const DLTensor *const *sources);

/* ---- Memory -------------------------------------------------------------------------------- */

/*
 * tl_cuda_alloc - allocate shareable memory on a GPU, for the allocators of other libraries
 *
 * tl_publish() shares tensors in this memory in place, and they outlive this process. From the
 * first publish in an allocation until it is freed, consumers keep it mapped, so that others in it
 * cost no mapping; so long the daemon counts it. The arguments are those that a pluggable allocator
 * of PyTorch has. @size is rounded up to what the GPU maps at once, usually 2 MiB: let a pool
 * divide it. The addresses are usable on @device only, not on its peers. @stream is not used.
 *
 * Ownership: yours, until tl_cuda_free(). Do not free it before the deleters of all tensors in it
 * that were published have been called.
 * Blocking: as the driver does. If the GPU is full, it also waits for the work that freed memory
 * waits for, and up to some tenths of a second for others to close what was freed just now.
 * Threads: any.
 * Returns: the address, or NULL with errno:
 *	ENODEV		CUDA cannot be used here, or there is no GPU of that number
 *	ENOMEM		the GPU is full, or this process is out of memory or threads
 *	ENOTSUP		the GPU or its driver has no virtual memory that can be shared
 *	EINVAL		@size is 0, or more than INT64_MAX
 *	EIO, EBUSY	another error of the driver; tl_last_error() has it
 * Since: 0.2
 */
TL_API void *tl_cuda_alloc(size_t size, int device, void *stream);

/*
 * tl_cuda_free - free memory of tl_cuda_alloc()
 *
 * A thread of the library unmaps it when what was queued on @stream before this call has ended:
 * that stream, or one that waited for it, must be the last to use the memory. NULL is the legacy
 * stream, which waits for all streams that are not made to be non-blocking; TL_STREAM_NONE says
 * that no work is left. A stream that is being captured into a graph must not be destroyed then:
 * the memory is unmapped some time after the capture has ended. PyTorch destroys no stream.
 *
 * Ownership: @memory is the library's. NULL, and what tl_cuda_alloc() did not return, does nothing;
 * @size and @device are not used.
 * Blocking: as the driver does when it records an event, which may wait for space on the stream.
 * Threads: any.
 * Returns: nothing, and leaves errno and tl_last_error() as they are. In a forked child, and while
 * the process ends, it does nothing.
 * Since: 0.2
 */
TL_API void tl_cuda_free(void *memory, size_t size, int device, void *stream);

/* ---- Handles ------------------------------------------------------------------------------- */

/* tl_ipc_handle - a handle that opens memory of a GPU in another process, by CUDA's own calls */
typedef struct tl_ipc_handle {
	size_t size;		       /* sizeof(tl_ipc_handle) */
	unsigned char device_uuid[16]; /* as cudaDeviceProp.uuid or cuDeviceGetUuid_v2() has it */
	unsigned char memory[64];      /* a cudaIpcMemHandle_t or CUipcMemHandle */
	unsigned char event[64];       /* a cudaIpcEventHandle_t, if @has_event */
	uint64_t allocation_size;      /* bytes of the allocation that the handle opens */
	uint64_t offset;	       /* of the tensor in that allocation, in bytes */
	bool has_event;		       /* there is an event that consumers must wait for; not on a
					  stream, which would hang if the producer is killed */
	unsigned char reserved[7];     /* 0 */
} tl_ipc_handle;

/*
 * tl_publish_ipc_handle - publish a tensor by a handle of CUDA
 *
 * This is for programs that use CUDA's own calls: the handle comes from cudaIpcGetMemHandle(), and
 * the library needs no CUDA. @spec has the shape, the type and the DLPack flags; its device and its
 * timeout are not used. If the handle has an event, consumers wait for it at every get. Only the
 * event tells when that work has ended: a consumer that cannot open it, as in some containers,
 * cannot get the tensor (-ENOTSUP). To publish for such consumers, wait for the work and publish
 * without an event.
 *
 * Ownership: the memory, and the event, must stay until @freed(@context) is called, on any thread,
 * when no lease is left and no client of the library has the memory mapped. @freed may be NULL. If
 * this call fails @freed is not called, except after -EINPROGRESS, when it is.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, an error of tl_publish(), or
 *	-EINVAL		also: the tensor does not fit into the allocation
 * Since: 0.1
 */
TL_API int tl_publish_ipc_handle(tl_client *client, const char *name, const tl_ipc_handle *handle,
				 const tl_spec *spec, const tl_put_options *options,
				 void (*freed)(void *context), void *context, uint64_t *version);

/*
 * tl_get_ipc_handle - take a lease on a tensor and get the handle that opens its memory
 *
 * This is for programs that open the memory themselves, with cudaIpcOpenMemHandle(); the library
 * needs no CUDA and opens nothing. *out has no data and the device number -1. Its data will be the
 * address at which you open the handle, plus handle->offset. Set handle->size before the call. The
 * stream and the mode in @options are not used, and the flags must be 0.
 *
 * Ownership: *out is yours. Close the memory before you call its deleter, which gives up the
 * lease at once.
 * Blocking: for one round trip, and as tl_get() does.
 * Threads: any.
 * Returns: 0, an error of tl_get(), or
 *	-ENOTSUP	the tensor is not on a GPU, or in memory that no such handle opens: that of
 *			tl_create(), of a virtual memory allocator or of a stream-ordered pool
 *	-ETIMEDOUT	also: it was replaced a hundred times meanwhile
 * Since: 0.1
 */
TL_API int tl_get_ipc_handle(tl_client *client, const char *name, const tl_get_options *options,
			     tl_ipc_handle *handle, DLManagedTensorVersioned **out);

/* ---- Devices ------------------------------------------------------------------------------- */

/* tl_cuda_info - the properties of a GPU of this process */
typedef struct tl_cuda_info {
	size_t size;		   /* sizeof(tl_cuda_info) */
	int32_t count;		   /* GPUs that this process sees */
	int32_t driver_version;	   /* of the CUDA that the driver implements: 12040 is 12.4 */
	unsigned char uuid[16];	   /* the same in every process */
	char name[128];		   /* as the driver calls it */
	uint64_t total_bytes;	   /* of its memory */
	int32_t compute_major;	   /* compute capability: 9 of 9.0 */
	int32_t compute_minor;	   /* compute capability: 0 of 9.0 */
	bool integrated;	   /* it shares the CPU's memory, as those of Tegra do */
	bool vmm;		   /* tl_create() can make memory on it */
	bool legacy_ipc;	   /* CUDA says that plain memory can be shared by a handle */
	bool memory_pools;	   /* memory of stream-ordered pools can be shared */
	unsigned char reserved[4]; /* 0 */
} tl_cuda_info;

/*
 * tl_get_cuda_info - get the properties of a GPU of this process
 *
 * Loads and initialises CUDA if that has not happened yet, but makes no context and allocates
 * nothing on the GPU. Set info->size before the call.
 *
 * Ownership: *info is yours, and a copy.
 * Blocking: as long as the driver takes to start, which may be seconds.
 * Threads: any.
 * Returns: 0, or
 *	-ENODEV		CUDA cannot be used here, and the text names the missing part; or there is
 *			no GPU of that number
 *	-EINVAL		@info is NULL, or info->size is too small
 * Since: 0.1
 */
TL_API int tl_get_cuda_info(int device, tl_cuda_info *info);

/* tl_device_usage - the daemon's account of a GPU */
typedef struct tl_device_usage {
	size_t size;		/* what the library has filled */
	unsigned char uuid[16]; /* of the GPU */
	uint64_t bytes_used;	/* of allocations that are published, or kept for drafts */
	uint64_t capacity;	/* limit of all users together; UINT64_MAX: none */
	uint64_t user_capacity; /* limit of each user; UINT64_MAX: none */
	uint32_t segments;	/* allocations that make up @bytes_used */
	uint32_t reserved;	/* 0 */
} tl_device_usage;

/*
 * tl_list_devices - visit all GPUs on which the daemon counts something
 *
 * Calls @visit for each GPU on which a tensor is published or memory is kept for drafts.
 *
 * Ownership: *usage is valid during the call of @visit only.
 * Blocking: for one round trip for each GPU; for the client's request timeout in all.
 * Threads: any; @visit runs on the calling thread.
 * Returns: as tl_list().
 * Since: 0.1
 */
TL_API int tl_list_devices(tl_client *client,
			   int (*visit)(const tl_device_usage *usage, void *context),
			   void *context);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_CUDA_H */
