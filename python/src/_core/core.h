/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C half of the Python package: connecting, getting, putting, and everything that needs DLPack
 * structs or the buffer protocol. It uses the public C API, transfer/transfer.h and CPython's
 * stable ABI of 3.10, and nothing else of the project. All functions need the GIL unless they say
 * otherwise. Deleters may be called on any thread at any time.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "buffer_abi.h"

/*
 * The Py_RETURN_NONE of 3.12's headers assumes that None is immortal. It is not when the extension
 * runs on 3.11.
 */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

#define NS_PER_SEC INT64_C(1000000000)

/* ---- What keeps a tensor: shared by the Python object and all its views ---- */

struct hold {
	_Atomic size_t refs; /* one for the object, each buffer and each DLPack export */
	DLManagedTensorVersioned *managed;
	uint64_t nbytes;
	intptr_t stream; /* on a GPU: the stream it was got for; TL_STREAM_DEFAULT: not named */
	int pid;	 /* on a GPU: the owner, since CUDA does not survive fork(); else 0 */
	Py_ssize_t byte_strides[]; /* for the buffer protocol; not for packed types */
};

/* Takes @managed over, even if it fails, which is NULL with an exception. */
struct hold *hold_new(DLManagedTensorVersioned *managed);
struct hold *hold_ref(struct hold *h);
/* Needs no GIL; the last one calls the deleter. Returns NULL. */
struct hold *hold_unref(struct hold *h);
/* Needs the GIL, and gives it up while a slow unmapping runs. Returns NULL. */
struct hold *hold_unref_py(struct hold *h);

static inline bool hold_read_only(const struct hold *h)
{
	return h->managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
}

/* ---- Objects ---- */

/*
 * A Tensor and a Draft both start with this. `plain` is a hold given away for a request for plain
 * bytes: PyTorch gives such a buffer back at once, but keeps its address and the object. So it must
 * live as long as the object. On a GPU it is the lease for __cuda_array_interface__, for the same
 * reason.
 */
struct array {
	PyObject_HEAD struct hold *hold; /* NULL: released */
	struct hold *plain;
	bool unflagged; /* do not set DLPack's READ_ONLY flag */
};

struct client;

struct draft {
	struct array array;	    /* has no hold once it has ended */
	struct client *client;	    /* a reference */
	PyObject *name;		    /* a str */
	struct draft *next, **link; /* in the client's list of open drafts, borrowed */
	unsigned long long version; /* set when it is committed */
	int pid;		    /* a child of fork() does not inherit drafts */
	tl_draft *handle;  /* on a GPU: for tl_draft_set_stream(), while there is a hold */
	intptr_t stream;   /* the stream that writes it, as far as is known */
	bool stream_said;  /* by the user, so that no other counts */
	bool many_streams; /* consumers asked for several */
	enum draft_state { DRAFT_OPEN, DRAFT_COMMITTED, DRAFT_ABORTED } state;
};

struct client {
	PyObject_HEAD tl_client *client; /* NULL: closed */
	struct draft *drafts;
	unsigned calls;	 /* in the library now, on other threads */
	bool closing;	 /* the last call closes it */
	uint32_t over;	 /* changes when the client closes, to interrupt waiting gets */
	uint32_t rescan; /* changes to interrupt wait_many() */
};

extern PyTypeObject *tensor_base, *draft_base, *client_base;
extern PyTypeObject *tensor_type; /* the Python class, which gets return */
extern PyTypeObject *draft_type;
extern PyObject *interface_reader; /* tensorlease._arrays.read_interface */

int tensor_init(PyObject *module);
int draft_init(PyObject *module);
int client_init(PyObject *module);

/* Makes a Tensor of @managed, which it takes over even if it fails. */
PyObject *tensor_from(DLManagedTensorVersioned *managed);
/* _share(): a Tensor that shares the hold of a Tensor or Draft. */
PyObject *array_share(PyObject *self, PyObject *unused);
PyObject *draft_from(struct client *c, PyObject *name, tl_draft *draft);
bool is_tensor(PyObject *o);
bool is_draft(PyObject *o);

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
int dlpack_init(PyTypeObject *type); /* sets __dlpack_c_exchange_api__ */
PyObject *tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *draft_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

/* ---- Somebody else's array, to be read (source.c) ---- */

struct source {
	DLTensor tensor; /* its shape and strides are the owner's, or in dims */
	uint64_t flags;
	PyObject *owner; /* keeps what the pointers need, or NULL */
	struct hold *hold;
	DLManagedTensor *legacy;
	DLManagedTensorVersioned *versioned;
	Py_buffer view;
	bool has_view;
	intptr_t stream; /* on a GPU: the one that waits for what writes the bytes */
	int64_t dims[2 * TL_NDIM_MAX];
};

/*
 * Returns 0, or -1 with an exception; source_end() ends it. @stream is the stream on a GPU that is
 * to wait for what writes the array, or TL_STREAM_DEFAULT. NULL means that the array must be on the
 * CPU.
 */
int source_begin(struct source *s, PyObject *array, const intptr_t *stream);
static inline bool source_on_gpu(const struct source *s)
{
	return s->tensor.device.device_type == kDLCUDA;
}
/*
 * Makes s->versioned own the array, so that it can be handed over. Returns 0, or -1 with an
 * exception.
 */
int source_own(struct source *s);
void source_end(struct source *s);

/* ---- Errors and arguments (util.c) ---- */

int util_init(PyObject *module);
/* Raise the exception for the library's @r, with the library's text or another. Return NULL. */
PyObject *raise_error(int r);
PyObject *raise_connect_error(int r);
PyObject *raise_text(int r, const char *format, ...);
/* Raises @class with the reason why a Tensor or Draft has no hold. */
void raise_ended(PyObject *self, PyObject *class);
/* Puts @name in front of the text of the exception that is set, for calls with many arrays. */
void raise_again_with_name(PyObject *name);
PyObject *register_types(PyObject *module, PyObject *args);

/*
 * Return the UTF-8 of a name, or of another @argument that must be a str without NUL. It is valid
 * as long as @o.
 */
const char *name_utf8(PyObject *o);
const char *text_utf8(const char *argument, PyObject *o);
/*
 * Converts a str, bytes or os.PathLike to new bytes. Returns NULL with an exception that names
 * @argument.
 */
PyObject *parse_path(const char *argument, PyObject *o);
/*
 * Converts seconds to nanoseconds; None is 0, inf is -1. Returns 0, or -1 with an exception that
 * names @argument.
 */
int parse_seconds(const char *argument, PyObject *o, int64_t *ns);
/* check_seconds(argument, timeout): does the same for Python code. */
PyObject *check_seconds(PyObject *module, PyObject *args);
/* Converts an unsigned int of 64 bits; NULL is 0. */
int parse_uint64(const char *argument, PyObject *o, uint64_t *number);
int parse_mode(PyObject *o, enum tl_mode *mode);
/* Takes bytes-like objects, or None, which is a view without an object. */
int parse_metadata(PyObject *o, Py_buffer *view);

/* A keyword of a call: its name, and where its value, which is borrowed, goes. */
struct keyword {
	const char *name;
	PyObject **value;
};

/*
 * Stores up to @positional arguments, and those by keyword, in @keywords, which ends with a NULL
 * name. Returns 0 or -1.
 */
int parse_arguments(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
		    Py_ssize_t positional, const struct keyword *keywords);

/*
 * Enclose a call of the library, during which the GIL may be given up. client_begin() returns false
 * with an exception if the client is closed.
 */
bool client_begin(struct client *c);
void client_end(struct client *c);
