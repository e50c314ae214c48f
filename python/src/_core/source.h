/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of other libraries, for reading. */
#pragma once

#include "array.h"

struct source {
	DLTensor tensor; /* its shape and strides are the owner's, or in dims */
	uint64_t flags;
	PyObject *owner; /* keeps the memory that the pointers need, or NULL */
	struct hold *hold;
	DLManagedTensor *legacy;
	DLManagedTensorVersioned *versioned;
	Py_buffer view;
	bool has_view;
	bool writable;	 /* as far as is known */
	intptr_t stream; /* on a GPU: the stream that waits for the writes of the bytes */
	int64_t dims[2 * TL_NDIM_MAX];
};

/*
 * Returns 0, or -1 with an exception; source_end() ends it. @stream is the stream on a GPU that has
 * to wait for the writes of the array, or TL_STREAM_DEFAULT. NULL means that it is an array to
 * write into, on the CPU.
 */
int source_begin(struct source *s, PyObject *array, const intptr_t *stream);

/* The stream on which all sources of one call are copied, those on a GPU. Without a named stream no
 * caller could know when the copies are made: they must be when the call returns. */
struct copies {
	intptr_t named;	 /* by the caller, or TL_STREAM_DEFAULT */
	intptr_t stream; /* if any is on a GPU */
	bool on_gpu, sealed;
};
/* Adds a source. Returns 0, or -1 with an exception: it is on another stream than those before. */
int copies_add(struct copies *c, const struct source *s);
static inline bool source_on_gpu(const struct source *s)
{
	return s->tensor.device.device_type == kDLCUDA;
}
/*
 * Makes s->versioned own the array, so that it can be handed over. Returns 0, or -1 with an
 * exception.
 */
int source_own(struct source *s);
/* Makes a source of the bytes of @h that is owned. Returns 0, or -1 with an exception. */
int source_of_hold(struct source *s, struct hold *h);
void source_end(struct source *s);
