/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of a Tensor and a Draft: the hold on their memory, the buffer protocol and
 * DLPack. */
#pragma once

#include "core.h"

/*
 * A stream on a GPU, as DLPack numbers streams, and the thread that named it: TL_STREAM_PER_THREAD
 * is that thread's own stream.
 */
struct stream {
	intptr_t number; /* TL_STREAM_DEFAULT: not named */
	uint64_t thread;
};

/* ---- The hold: shared by the Python object and all its views ---- */

struct hold {
	_Atomic size_t refs; /* one for the object, each buffer and each DLPack export */
	DLManagedTensorVersioned *managed;
	struct hold *base; /* of a view: the hold of the bytes, kept by `managed`; NULL: its own */
	uint64_t nbytes;
	int noted;	      /* by fault_note() */
	bool foreign;	      /* another library made `managed`, and its deleter may need the GIL */
	struct stream stream; /* on a GPU: it was got for that one; an ItemDraft is written there */
	bool drafted;	      /* it is an ItemDraft's, on a GPU */
	bool many_streams;    /* consumers of that asked for several */
	PyObject *stream_owner; /* the owner of that stream, or of the one that writes a draft,
				   which must not be freed before the hold; or NULL */
	int64_t timeout_ns; /* on a GPU: for how long a consumer waits for the producer's work */
	int pid; /* on a GPU: the owning process, since CUDA does not survive fork(); else 0 */
	/* For the buffer protocol, whose views stay valid when `managed` was published: */
	Py_ssize_t *shape;	   /* behind byte_strides */
	Py_ssize_t byte_strides[]; /* not for packed types */
};

/* Takes @managed over, even if it fails, and returns NULL with an exception then. */
struct hold *hold_new(DLManagedTensorVersioned *managed);
struct hold *hold_ref(struct hold *h);
/* Needs no GIL. The last reference calls the deleter. Returns NULL. */
struct hold *hold_unref(struct hold *h);
/* Needs the GIL, and gives it up while a slow unmapping runs. Returns NULL. */
struct hold *hold_unref_py(struct hold *h);
/* As the one of these that suits: consumers call deleters with the GIL or without. */
struct hold *hold_unref_any(struct hold *h);
/* Gives up a reference, or NULL, on any thread, with or without the GIL; not once the interpreter
 * is ending. */
void owner_give_up(PyObject *owner);
/* Ends a lease of the library's that no hold has. Needs the GIL, and gives it up meanwhile. */
void lease_end(DLManagedTensorVersioned *managed);

/* Whether get(..., device=) made a copy, of which @h may be a view. tensor_remap() clears the flag,
 * which tells there of a daemon that has ended. */
static inline bool hold_copied(const struct hold *h)
{
	return (h->base ? h->base : h)->managed->flags & DLPACK_FLAG_BITMASK_IS_COPIED;
}

static inline bool hold_read_only(const struct hold *h)
{
	return h->managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
}

/* ---- Objects ---- */

/*
 * The beginning of a Tensor and of a Draft. `lasting` is a lease that ends with the object and not
 * with its release, for consumers that keep the address and the object only: those of
 * __cuda_array_interface__, and numpy.ndarray(buffer=).
 */
struct array {
	PyObject_HEAD struct hold *hold; /* NULL: released */
	struct hold *lasting;
	PyObject *draft; /* of a buffer of a Draft: keeps it open; else NULL */
	bool unflagged;	 /* do not set DLPack's READ_ONLY flag */
};

/* Make a Tensor of @managed, which they take over even if they fail. tensor_got() makes one that
 * the client got. */
PyObject *tensor_from(DLManagedTensorVersioned *managed);
PyObject *tensor_got(const struct client *c, DLManagedTensorVersioned *managed);
/* Makes a Tensor of a hold, whose reference it takes over; NULL fails. */
PyObject *tensor_over(struct hold *h);
PyObject *tensor_over_as(PyTypeObject *type, struct hold *h); /* of a class derived from Tensor */
/* _share(): a Tensor that shares the hold of a Tensor or Draft. */
PyObject *array_share(PyObject *self, PyObject *unused);
/*
 * array.c: getters and the buffer protocol of both. They return NULL with an exception if there is
 * no hold.
 */
struct hold *array_hold(PyObject *self);
void array_deinit(PyObject *self);
PyObject *array_get_shape(PyObject *self, void *unused);
PyObject *array_get_dtype(PyObject *self, void *unused);
PyObject *array_get_dtype_tuple(PyObject *self, void *unused);
PyObject *array_get_strides(PyObject *self, void *unused);
PyObject *array_get_nbytes(PyObject *self, void *unused);
PyObject *array_get_ndim(PyObject *self, void *unused);
PyObject *array_get_size(PyObject *self, void *unused);
PyObject *array_get_itemsize(PyObject *self, void *unused);
PyObject *array_get_device(PyObject *self, void *unused);
PyObject *array_get_read_only(PyObject *self, void *unused);
PyObject *array_get_released(PyObject *self, void *unused);
PyObject *array_get_address(PyObject *self, void *unused);
PyObject *array_dlpack_device(PyObject *self, PyObject *unused);
int array_get_buffer(PyObject *self, Py_buffer *view, int flags);
void array_release_buffer(PyObject *self, Py_buffer *view);
PyObject *shape_tuple(int ndim, const int64_t *shape);
PyObject *dtype_text(DLDataType t);
PyObject *device_text(DLDevice device);
uint32_t element_bits(DLDataType t, uint64_t flags);
/* Converts the element of a buffer or a typestr. Returns false if DLPack has none. */
bool dtype_from_format(const char *format, Py_ssize_t itemsize, DLDataType *out);

/* dlpack.c */
/* _view((code, bits, lanes), shape): a Tensor over the same bytes as other elements. */
PyObject *array_view(PyObject *self, PyObject *args);
/* The hold that @managed keeps, if it is an export of ours, and so a view of its bytes; or NULL. */
struct hold *dlpack_base(const DLManagedTensorVersioned *managed);
/* Takes another lease on the tensor of @h, or on the base of a view, in that mode and with the
 * shape of @h. Returns 0, or a negative errno with the library's text or with an exception. Gives
 * the GIL up. */
int hold_remap(struct hold *h, enum tl_mode mode, DLManagedTensorVersioned **out);
int dlpack_init(PyTypeObject *type); /* sets __dlpack_c_exchange_api__ */
PyObject *tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *draft_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
