/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this process: known by UUID to other processes, by number to this one. Work is done
 * in a device's primary context, which is the one that CUDA's runtime uses: it is retained at the
 * first use and pushed around each group of calls, so that what the caller has current stays.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/cuda/driver.h"
#include "util/list.h"

struct cuda_device {
	int ordinal;
	CUdevice device;
	struct cuda_uuid uuid;
	CUcontext context;  /* NULL until the first cuda_enter() retains it */
	size_t granularity; /* of memory that descriptors can share; 0: there is none */
	struct list events; /* struct cuda_event: free local ones; cuda_lock */
};

/* The driver, or NULL and tl_fail()'s text: -ENODEV. */
const struct cuda_driver *cuda_driver(void);

/* The device with that number or UUID. 0, or -ENODEV with a text. */
int cuda_device_at(int ordinal, struct cuda_device **out);
int cuda_device_with(const unsigned char uuid[16], struct cuda_device **out);

/* The number of the GPU with that UUID, if this process has used CUDA through this library and sees
 * it; else -1. */
int cuda_ordinal(const unsigned char uuid[16]);

/* The state of a thread between cuda_enter() and cuda_leave(). */
struct cuda_scope {
	const struct cuda_driver *driver;
	int capture_mode; /* the thread's own: our calls must not break the capture of another */
};

/* Makes the device's context current on this thread, until cuda_leave(). 0, or a negative errno
 * with a text. */
int cuda_enter(struct cuda_device *device, struct cuda_scope *scope);
void cuda_leave(struct cuda_scope *scope);

/*
 * May our work be put on the stream, and may the stream be queried? Neither may be done while it is
 * captured into a graph, since that would spoil the capture. 0, or -EBUSY with a text.
 */
int cuda_stream_usable(const struct cuda_scope *scope, intptr_t stream);

/* The negative errno of @result; the text is @what, formatted, then the driver's. */
int cuda_fail(CUresult result, const char *what, ...) __attribute__((format(printf, 2, 3)));

/* The driver's handle for TL_STREAM_* or the address of a stream. */
static inline CUstream cuda_stream(intptr_t stream)
{
	return stream == 0 ? CUDA_STREAM_LEGACY : (CUstream)stream;
}

enum { CUDA_UUID_TEXT = 41 };
/* Writes "GPU-8d8c7d53-...", the form that nvidia-smi prints, to @text and returns it. */
const char *cuda_uuid_format(const unsigned char uuid[16], char text[CUDA_UUID_TEXT]);
