/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this process: known by UUID to other processes, by number to this one. Work is done
 * in a device's primary context, which is the one that CUDA's runtime uses: it is retained at the
 * first use and pushed around each group of calls, so that what the caller has current stays.
 *
 * All calls that need a context are between cuda_enter() and cuda_leave(). That is a gate as well:
 * exit() closes it and waits until nobody is inside, before the driver takes itself down.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "client/gpu/driver.h"
#include "util/list.h"
#include "util/thread.h"

enum { CUDA_DEVICES_MAX = 64 };

struct cuda_device {
	int ordinal;
	CUdevice device;
	struct cuda_uuid uuid;
	CUcontext context;     /* NULL until the first cuda_enter() retains it */
	unsigned long long id; /* the context's id, which a reset changes */
	_Atomic unsigned life; /* counts contexts: a reset ends what was made in the older ones */
	size_t granularity;    /* of memory that descriptors can share; 0: not supported */
	struct list events;    /* struct cuda_event: free local ones; cuda_lock */
	struct list shared;    /* free ones that other processes may have open; cuda_lock */
};

/* The properties of memory for draft buffers: a descriptor opens it in other processes, and network
 * cards can read it if the device supports that. */
struct cuda_allocation_prop cuda_buffer_prop(const struct cuda_driver *d,
					     const struct cuda_device *device);

/* Returns the driver, or NULL after tl_fail() with -ENODEV. */
const struct cuda_driver *cuda_driver(void);

/* Finds the device with that number or UUID. Returns 0, or -ENODEV with a text. */
int cuda_device_at(int ordinal, struct cuda_device **out);
int cuda_device_with(const unsigned char uuid[16], struct cuda_device **out);

/* Returns the number of the GPU with that UUID, if this process has used CUDA through this library
 * and sees that GPU; else -1. */
int cuda_ordinal(const unsigned char uuid[16]);

/* The state of a thread between cuda_enter() and cuda_leave(). */
struct cuda_scope {
	const struct cuda_driver *driver;
	int capture_mode; /* the thread's own mode: ours must not break another's capture */
	int cancel;	  /* from cancel_forbid(): the driver has locks of its own */
};

/*
 * Makes the device's context current on this thread, until cuda_leave(). If it was reset
 * (cudaDeviceReset), a new one is retained, and device->life grows by 1. 0, or a negative errno
 * with a text.
 */
int cuda_enter(struct cuda_device *device, struct cuda_scope *scope);
/* Notices a reset as cuda_enter() does. */
void cuda_look_for_reset(struct cuda_device *device);
/* cuda_look_for_reset(), and checks that a tensor on the device can be got for @stream, unless that
 * is TL_STREAM_NONE: as cuda_stream_fits(). */
int cuda_look_at_stream(struct cuda_device *device, intptr_t stream);
/* True if exit() has begun to end CUDA. Then cuda_enter() fails, and its failure does not mean that
 * any work has ended. */
bool cuda_is_ending(void);
void cuda_leave(struct cuda_scope *scope);
/* From now on nothing that this thread of the library calls, such as deleters, spoils the
 * capture of another thread. Does nothing as long as this process has not used CUDA through this
 * library. */
void cuda_relax_thread(void);

/* Checks that we may queue work on the stream and query it. Neither is allowed while the stream is
 * captured into a graph, since that would spoil the capture. Returns 0, or
 * -EBUSY with a text. */
int cuda_stream_usable(const struct cuda_scope *scope, intptr_t stream);
/* cuda_stream_usable(), and checks that it is a stream of the device on which our events can be
 * recorded. On other streams nobody would know when a tensor has been read. Returns 0, or a
 * negative errno with a text: -EINVAL for a stream of another GPU. */
int cuda_stream_fits(const struct cuda_scope *scope, const struct cuda_device *device,
		     intptr_t stream);

/* Returns the negative errno of @result. The text is @what, formatted, then the driver's text. */
int cuda_fail(CUresult result, const char *what, ...) __attribute__((format(printf, 2, 3)));

/* Returns the driver's handle for TL_STREAM_* or the address of a stream. */
static inline CUstream cuda_stream(intptr_t stream)
{
	return stream == 0 ? CUDA_STREAM_LEGACY : (CUstream)stream;
}

/* Returns the stream that means on this thread what @stream meant on the thread whose
 * thread_unique() is @thread. No thread can name another's own stream, but the legacy stream waits
 * for the streams of all threads. */
static inline intptr_t cuda_stream_here(intptr_t stream, uint64_t thread)
{
	return stream == TL_STREAM_PER_THREAD && thread != thread_unique() ? TL_STREAM_LEGACY
									   : stream;
}

/* True for the two streams that every program has. They wait for each other. */
static inline bool cuda_stream_is_shared(CUstream stream)
{
	return stream == CUDA_STREAM_LEGACY || stream == CUDA_STREAM_PER_THREAD;
}

/*
 * True if the answer of cuStreamQuery() is complete. The legacy stream and the blocking streams,
 * such as the threads', wait for each other, but the query looks only at the stream's own queue. An
 * event recorded there also shows that the work for which the stream waits has ended. The stream is
 * usable, and the context is current.
 */
bool cuda_stream_tells(const struct cuda_scope *scope, CUstream stream);

/* Returns the stream on which another thread can later mark the work now queued on @stream. That is
 * the legacy stream, except in two cases: @stream does not wait for the legacy stream, or it is
 * being captured and cannot be asked whether it does. The context is current. */
CUstream cuda_stream_later(const struct cuda_scope *scope, CUstream stream);

/* cuda_stream_later() where the driver takes no calls: in a host function
 * (CUDA_E_NOT_PERMITTED). */
static inline CUstream cuda_stream_unasked(CUstream stream)
{
	return cuda_stream_is_shared(stream) ? CUDA_STREAM_LEGACY : stream;
}

enum { CUDA_UUID_TEXT = 37 };
/* Writes "8d8c7d53-...", what nvidia-smi prints after GPU- or MIG-, to @text and returns it. */
const char *cuda_uuid_format(const unsigned char uuid[16], char text[CUDA_UUID_TEXT]);

/*
 * The file of a GPU, /dev/nvidiaN. Unless persistence mode is on, the kernel's driver shuts a GPU
 * down when no process has that file open, and all memory there is lost. A descriptor of virtual
 * memory refers to /dev/nvidiactl and does not prevent that. So the daemon is given a
 * descriptor of the GPU's own file.
 */

/* Opens the device's file. Returns a descriptor, which is the caller's, or -1 if the file is not
 * known or cannot be opened, as in a container without /proc/driver. */
int cuda_node_open(const struct cuda_device *device);
