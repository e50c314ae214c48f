/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: streams, leases for one of them, and what there is. */
#pragma once

#include "core.h"

extern PyObject *cuda_reader;	/* tensorlease._cuda.read_interface */
extern PyObject *stream_reader; /* tensorlease._cuda.stream_number */

static inline bool hold_on_gpu(const struct hold *h)
{
	return h->managed->dl_tensor.device.device_type == kDLCUDA;
}

/*
 * A stream as a user says it: None or NULL is TL_STREAM_DEFAULT; an int as DLPack numbers them; a stream object of another
 * library. 0, or -1 with an exception.
 */
int parse_stream(PyObject *o, intptr_t *stream);
PyObject *stream_number(intptr_t stream); /* None: not said */

/*
 * Another lease on the tensor, which is on a GPU, for use on that stream. 0, or a negative errno and the library's text; -EINVAL:
 * the tensor is not the library's. Gives the GIL up.
 */
int hold_lease(struct hold *h, intptr_t stream, DLManagedTensorVersioned **out);
/* False with a BufferError: a child of fork() cannot use what its parent had on a GPU. */
bool hold_usable(const struct hold *h);

/* _cuda_stream(): orders the legacy stream, if none was said, after the producer's work; which it is, or None. */
PyObject *tensor_cuda_stream(PyObject *self, PyObject *unused);

PyObject *uuid_text(const unsigned char uuid[16]); /* as nvidia-smi prints it */

/* cuda_devices() -> list of tuples */
PyObject *cuda_devices(PyObject *module, PyObject *unused);
