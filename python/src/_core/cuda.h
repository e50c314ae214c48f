/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: streams, leases for a stream, and the list of GPUs. */
#pragma once

#include "array.h"

extern PyObject *cuda_reader;	/* tensorlease._cuda.read_interface */
extern PyObject *stream_reader; /* tensorlease._cuda.stream_number */
extern PyObject *device_reader; /* tensorlease._cuda.device_pair */

/* Parses the device that a tensor is wanted on. @o may be NULL or None: leave it where it is.
 * Returns 0, or -1 with an exception. */
int parse_target(PyObject *o, tl_get_options *options);

static inline bool hold_on_gpu(const struct hold *h)
{
	return h->managed->dl_tensor.device.device_type == kDLCUDA;
}

/* Does this thread have the GIL? Consumers call deleters with it or without. */
bool gil_is_held(void);

/* The GPU that is current on a thread, for producers that export only what is on that one. */
struct current_gpu {
	bool pushed;
};
/* Makes a GPU current, unless it is already or the driver is not loaded, until current_gpu_end().
 */
struct current_gpu current_gpu_begin(int number);
void current_gpu_end(struct current_gpu was);
/* The number of the GPU on which an address lies, or -1. */
int gpu_of_pointer(uint64_t address);
/* Waits until the GPU has done all work of this process. Gives the GIL up meanwhile. */
void gpu_finish(int number);

/*
 * Converts a stream: None or NULL is TL_STREAM_DEFAULT, an int is a number of DLPack's, else it is
 * a stream object of another library. Returns 0, or -1 with an exception.
 */
int parse_stream(PyObject *o, intptr_t *stream);
PyObject *stream_number(intptr_t stream); /* None if it was not named */
/* A stream that this thread names. */
struct stream stream_named(intptr_t number);
/*
 * The number by which this thread can name a stream. No thread can name another's own stream; the
 * legacy stream stands for it, which waits for the streams of all threads.
 */
intptr_t stream_here(struct stream stream);
/* Adds the stream of a consumer, which this thread names, to what is known of those that write a
 * draft. False: there are several. */
bool stream_add(struct stream *known, intptr_t stream);

/* Of a draft on a GPU: notes that a consumer will work on that stream. */
void hold_used_on(struct hold *h, intptr_t stream);

/* Whether the tensor is the library's, which can be leased once more. */
bool hold_is_ours(const struct hold *h);
/*
 * Takes another lease on the tensor, which is on a GPU and the library's, for use on @stream. Waits
 * until its producer, if that is another process, has written it, at most until @end of
 * wait_end(). Ctrl-C ends the wait, and so does close() of @c unless that is NULL. Returns 0, or a
 * negative errno with an exception; -ETIMEDOUT: it was not written in time. Gives the GIL up.
 */
int hold_lease(struct hold *h, intptr_t stream, const struct client *c, int64_t end,
	       DLManagedTensorVersioned **out);
/* Does that for a Tensor, and makes it the Tensor's lease. @owner is the user's name for the
 * stream, and stays as long. Nothing is to be done on the CPU, or if no stream was named. */
int tensor_order(PyObject *self, intptr_t stream, PyObject *owner, const struct client *c,
		 int64_t end);
/* _order(stream): does that without a wait. TimeoutError: the tensor is not written yet. */
PyObject *tensor_order_now(PyObject *self, PyObject *stream);
/* check_stream(stream): raises what get(stream=) would. */
PyObject *check_stream(PyObject *module, PyObject *stream);
/*
 * Returns false with a BufferError in a child of fork(), which cannot use its parent's GPU tensors.
 */
bool hold_usable(const struct hold *h);

/* _cuda_stream(): orders the named stream, or else the legacy stream, after the producer's work.
 * Returns that stream, or None. */
PyObject *tensor_cuda_stream(PyObject *self, PyObject *unused);

/* @prefix is "GPU-", or "MIG-" where the device is known to be an instance of MIG. */
PyObject *uuid_text(const char *prefix, const unsigned char uuid[16]);

/* cuda_devices() -> list of tuples */
PyObject *cuda_devices(PyObject *module, PyObject *unused);
/* cuda_alloc(nbytes, device, allocated) -> address, which it adds to the set */
PyObject *cuda_alloc(PyObject *module, PyObject *args);
/* cuda_free(address, set of addresses, stream): ValueError if the address is not in the set */
PyObject *cuda_free(PyObject *module, PyObject *args);
/* library_path() -> str: the file of libtensorlease, for libraries that look for functions in it */
PyObject *library_path(PyObject *module, PyObject *unused);
