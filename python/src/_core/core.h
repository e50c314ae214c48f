/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C half of the Python package: connecting, getting, putting, and what needs DLPack structs or the buffer
 * protocol. Over the public C API only, and over CPython's stable ABI of 3.10. All of it runs with the GIL, but for
 * deleters, which may be called on any thread at any time.
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

/* Py_RETURN_NONE of 3.12's headers takes None for immortal, which it is not where the extension runs on 3.11. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

#define NS_PER_SEC INT64_C(1000000000)

/* ---- What keeps a tensor: shared by the Python object and all its views ---- */

struct hold {
	_Atomic size_t refs; /* of the object, of each buffer and of each DLPack export */
	DLManagedTensorVersioned *managed;
	uint64_t nbytes;
	intptr_t stream; /* on a GPU: that it was got for, or TL_STREAM_DEFAULT: it was not said */
	int pid;	 /* on a GPU: whose; CUDA does not survive fork(). 0: on the CPU */
	Py_ssize_t byte_strides[]; /* for the buffer protocol; not for packed types */
};

/* Takes @managed over, also on failure: NULL with an exception. */
struct hold *hold_new(DLManagedTensorVersioned *managed);
struct hold *hold_ref(struct hold *h);
/* Without the GIL too; the last one calls the deleter. Returns NULL. */
struct hold *hold_unref(struct hold *h);
/* With the GIL, which it gives away where the end of a mapping may take long. */
struct hold *hold_unref_py(struct hold *h);

static inline bool hold_read_only(const struct hold *h)
{
	return h->managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
}

/* ---- Objects ---- */

/*
 * Both start with this, so that they share what only looks at it. `plain` is what was given to who asked for plain bytes:
 * PyTorch gives such a buffer back at once, and keeps its address and the object. It goes with the object, not before.
 * So does, on a GPU, the lease of who asked for __cuda_array_interface__.
 */
struct array {
	PyObject_HEAD struct hold *hold; /* NULL: released */
	struct hold *plain;
	bool unflagged; /* DLPack: it is not said that it is read-only */
};

struct client;

struct draft {
	struct array array;	    /* its hold is NULL when it has ended */
	struct client *client;	    /* a reference */
	PyObject *name;		    /* str */
	struct draft *next, **link; /* among the client's open drafts, borrowed */
	unsigned long long version; /* once committed */
	int pid;		    /* drafts are not inherited */
	tl_draft *handle;  /* on a GPU: for tl_draft_set_stream(), as long as there is a hold */
	intptr_t stream;   /* that writes it, as far as is known */
	bool stream_said;  /* by the user: no other counts */
	bool many_streams; /* were asked for by consumers */
	enum draft_state { DRAFT_OPEN, DRAFT_COMMITTED, DRAFT_ABORTED } state;
};

struct client {
	PyObject_HEAD tl_client *client; /* NULL: closed */
	struct draft *drafts;
	unsigned calls;	 /* in the library now, on other threads */
	bool closing;	 /* the last of them closes */
	uint32_t over;	 /* interrupts the waiting gets when the client is closed */
	uint32_t rescan; /* interrupts wait_many() */
};

extern PyTypeObject *tensor_base, *draft_base, *client_base;
extern PyTypeObject *tensor_type; /* what gets hand out: the Python class */
extern PyTypeObject *draft_type;
extern PyObject *interface_reader; /* tensorlease._arrays.read_interface */

int tensor_init(PyObject *module);
int draft_init(PyObject *module);
int client_init(PyObject *module);

/* A Tensor over @managed, which it takes over, also on failure. */
PyObject *tensor_from(DLManagedTensorVersioned *managed);
/* _share(): a Tensor over the same hold, of a Tensor or a Draft. */
PyObject *array_share(PyObject *self, PyObject *unused);
PyObject *draft_from(struct client *c, PyObject *name, tl_draft *draft);
bool is_tensor(PyObject *o);
bool is_draft(PyObject *o);

/* array.c: getters and the buffer protocol of both. Of a hold that is there, or NULL with an exception. */
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
/* Of a buffer's or typestr's element: false if DLPack has none. */
bool dtype_from_format(const char *format, Py_ssize_t itemsize, DLDataType *out);

/* dlpack.c */
int dlpack_init(PyTypeObject *type); /* sets __dlpack_c_exchange_api__ */
PyObject *tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *draft_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

/* ---- Somebody else's array, to be read (source.c) ---- */

struct source {
	DLTensor tensor; /* shape and strides are the owner's, or in dims */
	uint64_t flags;
	PyObject *owner; /* keeps what the pointers need, or NULL */
	struct hold *hold;
	DLManagedTensor *legacy;
	DLManagedTensorVersioned *versioned;
	Py_buffer view;
	bool has_view;
	intptr_t stream; /* on a GPU: that waits for what writes the bytes */
	int64_t dims[2 * TL_NDIM_MAX];
};

/*
 * 0, or -1 with an exception. End with source_end(). @stream: on a GPU, which is to wait for what writes the array, or
 * TL_STREAM_DEFAULT; NULL: it must be on the CPU.
 */
int source_begin(struct source *s, PyObject *array, const intptr_t *stream);
static inline bool source_on_gpu(const struct source *s)
{
	return s->tensor.device.device_type == kDLCUDA;
}
/* Makes s->versioned something that owns the array, to be handed over. 0, or -1 with an exception. */
int source_own(struct source *s);
void source_end(struct source *s);

/* ---- Errors and arguments (util.c) ---- */

int util_init(PyObject *module);
/* Raises what the library's @r means, with its text. Returns NULL. */
PyObject *raise_error(int r);
PyObject *raise_connect_error(int r);
PyObject *raise_text(int r, const char *format, ...);
/* Why a Tensor or Draft has no hold, as a @class. */
void raise_ended(PyObject *self, PyObject *class);
/* The exception that is on its way, with @name in front of its words: for calls with many arrays. */
void raise_again_with_name(PyObject *name);
PyObject *register_types(PyObject *module, PyObject *args);

/* The UTF-8 of a name, or of another @argument that is a str, without NULs; valid as long as @o. */
const char *name_utf8(PyObject *o);
const char *text_utf8(const char *argument, PyObject *o);
/* Of a str, bytes or os.PathLike: bytes, a reference. NULL with an exception that names @argument. */
PyObject *parse_path(const char *argument, PyObject *o);
/* Seconds to nanoseconds: None 0, inf -1. 0 or -1; the exception names @argument. */
int parse_seconds(const char *argument, PyObject *o, int64_t *ns);
/* check_seconds(argument, timeout): the same for Python code. */
PyObject *check_seconds(PyObject *module, PyObject *args);
/* An int of 64 bits without a sign; NULL: 0. */
int parse_uint64(const char *argument, PyObject *o, uint64_t *number);
int parse_mode(PyObject *o, enum tl_mode *mode);
/* bytes-like, or None: a view without an object. */
int parse_metadata(PyObject *o, Py_buffer *view);

/* One keyword of a call: its name and where its value (borrowed) goes. */
struct keyword {
	const char *name;
	PyObject **value;
};

/* Up to @positional arguments and those by keyword into @keywords, which ends with a NULL name. 0 or -1. */
int parse_arguments(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
		    Py_ssize_t positional, const struct keyword *keywords);

/* A call of the library by an open client, without the GIL between the two. False: closed, with an exception. */
bool client_begin(struct client *c);
void client_end(struct client *c);
