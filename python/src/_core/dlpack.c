/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing tensors out by DLPack: __dlpack__() and the C exchange interface.
 *
 * Invariant: memory that is mapped read-only is only given to a consumer that shows, by how it
 * asks, that it honours the READ_ONLY flag. Every other consumer gets a copy-on-write mapping of
 * the same tensor (tl_remap()), in which a write affects nobody. PyTorch, CuPy and tvm-ffi ignore
 * the flag, and a write to a read-only mapping kills the process.
 *
 * On a GPU there is no copy-on-write. A consumer that asks for a versioned capsule gets the shared
 * memory with the flag set, and a lease of its own for the stream that it names (cuda.h).
 *
 * Deleters need neither the GIL nor an interpreter.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "draft.h"
#include "lock.h"
#include "wait.h"

#define LEGACY "dltensor"
#define VERSIONED "dltensor_versioned"

/* ---- Exports ---- */

struct export
{
	union {
		DLManagedTensorVersioned versioned;
		DLManagedTensor legacy;
	};
	struct hold *hold; /* keeps the memory, or NULL */
	void *memory;	   /* a copy that belongs to the export */
	int64_t dims[];	   /* the shape, then the strides */
};

static void export_free(struct export *e)
{
	if (!e)
		return;
	hold_unref_any(e->hold);
	free(e->memory);
	free(e);
}

static void delete_versioned(DLManagedTensorVersioned *managed)
{
	export_free((struct export *)managed);
}

static void delete_legacy(DLManagedTensor *managed)
{
	export_free((struct export *)managed);
}

static struct export *export_new(const DLTensor *t)
{
	struct export *e = calloc(1, sizeof(*e) + 2 * sizeof(int64_t) * (size_t)t->ndim);
	int64_t step = 1;

	if (!e)
		return NULL;
	for (int i = t->ndim - 1; i >= 0; i--) {
		e->dims[i] = t->shape[i];
		e->dims[t->ndim + i] = t->strides ? t->strides[i] : step;
		step *= t->shape[i] ? t->shape[i] : 1;
	}
	return e;
}

static DLTensor export_tensor(struct export *e, const DLTensor *t)
{
	DLTensor to = *t;

	to.shape = t->ndim ? e->dims : NULL;
	to.strides = t->ndim ? e->dims + t->ndim : NULL;
	return to;
}

static void export_set(struct export *e, const DLTensor *t, uint64_t flags, bool versioned)
{
	DLTensor to = export_tensor(e, t);

	if (versioned)
		e->versioned = (DLManagedTensorVersioned){
			.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
			.manager_ctx = e,
			.deleter = delete_versioned,
			.flags = flags,
			.dl_tensor = to,
		};
	else
		e->legacy = (DLManagedTensor){
			.dl_tensor = to,
			.manager_ctx = e,
			.deleter = delete_legacy,
		};
}

/* Exports the memory of the hold as it is. */
static struct export *export_shared(struct hold *h, bool versioned)
{
	struct export *e = export_new(&h->managed->dl_tensor);

	if (!e) {
		PyErr_NoMemory();
		return NULL;
	}
	/* A tensor without bytes gets no lease: some consumers never call its deleter. */
	e->hold = h->nbytes ? hold_ref(h) : NULL;
	export_set(e, &h->managed->dl_tensor,
		   h->managed->flags & ~DLPACK_FLAG_BITMASK_IS_COPIED, /* the Tensor has it too */
		   versioned);
	return e;
}

static bool c_order(const DLTensor *t)
{
	int64_t step = 1;

	for (int i = 0; i < t->ndim; i++)
		if (t->shape[i] == 0)
			return true;
	for (int i = t->ndim - 1; t->strides && i >= 0; i--) {
		if (t->shape[i] != 1 && t->strides[i] != step)
			return false;
		step *= t->shape[i];
	}
	return true;
}

/* ---- Views ---- */

struct hold *dlpack_base(const DLManagedTensorVersioned *managed)
{
	bool ours = managed->deleter == delete_versioned &&
		    managed->dl_tensor.device.device_type == kDLCPU; /* leases on GPUs have streams
								      */
	struct hold *h = ours ? ((const struct export *)managed)->hold : NULL;

	return h && h->base ? h->base : h;
}

/* Makes a tensor of those elements over the bytes of @base, which are enough. NULL: no memory. */
static DLManagedTensorVersioned *view_new(struct hold *base, DLDataType dtype, int32_t ndim,
					  int64_t *shape, uint64_t flags)
{
	DLTensor t = base->managed->dl_tensor;
	struct export *e;

	t.dtype = dtype;
	t.ndim = ndim;
	t.shape = shape;
	t.strides = NULL;
	e = export_new(&t);
	if (!e)
		return NULL;
	e->hold = hold_ref(base);
	export_set(e, &t, flags, true);
	return &e->versioned;
}

/* The same elements as those of @view, over another mapping of the bytes, which it takes over. */
static int view_again(const struct hold *view, DLManagedTensorVersioned *mapped,
		      DLManagedTensorVersioned **out)
{
	const DLTensor *t = &view->managed->dl_tensor;
	const uint64_t padded = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	uint64_t flags = (mapped->flags & ~padded) | (view->managed->flags & padded);
	struct hold *base;

	mapped->flags &= ~DLPACK_FLAG_BITMASK_IS_COPIED; /* only the caller needs it */
	base = hold_new(mapped);
	*out = base ? view_new(base, t->dtype, t->ndim, t->shape, flags) : NULL;
	hold_unref(base);
	if (!*out)
		PyErr_NoMemory();
	return *out ? 0 : -ENOMEM;
}

int hold_remap(struct hold *h, enum tl_mode mode, DLManagedTensorVersioned **out)
{
	DLManagedTensorVersioned *m = NULL;
	int r;

	hold_ref(h); /* because another thread may release the tensor meanwhile */
	Py_BEGIN_ALLOW_THREADS;
	r = tl_remap(h->base ? h->base->managed : h->managed, mode, &m);
	Py_END_ALLOW_THREADS;
	if (!r && h->base)
		r = view_again(h, m, &m);
	hold_unref_py(h);
	*out = m;
	return r;
}

/* Returns whether the elements fit into @nbytes. */
static bool view_fits(DLDataType dtype, Py_ssize_t ndim, const int64_t *shape, uint64_t nbytes)
{
	uint64_t bits = element_bits(dtype, 0);

	for (Py_ssize_t i = 0; i < ndim; i++)
		if (shape[i] < 0 || __builtin_mul_overflow(bits, (uint64_t)shape[i], &bits))
			return false;
	return bits / 8 + (bits % 8 != 0) <= nbytes;
}

/* The same elements have the same padding; others have none. */
static uint64_t view_flags(const struct hold *h, DLDataType dtype, Py_ssize_t ndim,
			   const int64_t *shape)
{
	const DLTensor *t = &h->managed->dl_tensor;
	uint64_t flags = DLPACK_FLAG_BITMASK_READ_ONLY;

	if (!memcmp(&dtype, &t->dtype, sizeof(dtype)) && ndim == t->ndim &&
	    (!ndim || !memcmp(shape, t->shape, (size_t)ndim * sizeof(*shape))))
		flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	return h->managed->flags & flags;
}

PyObject *array_view(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	DLManagedTensorVersioned *m;
	int64_t shape[TL_NDIM_MAX];
	int code, bits, lanes;
	DLDataType dtype;
	struct hold *h;
	PyObject *sizes;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(args, "(iii)O!", &code, &bits, &lanes, &PyTuple_Type, &sizes))
		return NULL;
	n = PyTuple_Size(sizes);
	for (Py_ssize_t i = 0; i < n && i < TL_NDIM_MAX; i++)
		shape[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
	h = PyErr_Occurred() ? NULL : array_hold(self);
	if (!h)
		return NULL;
	dtype = (DLDataType){ (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
	if (n > TL_NDIM_MAX || hold_on_gpu(h) || !c_order(&h->managed->dl_tensor) ||
	    !view_fits(dtype, n, shape, h->nbytes)) {
		PyErr_SetString(PyExc_ValueError, "the tensor cannot be seen in this way");
		return NULL;
	}
	m = view_new(h, dtype, (int32_t)n, shape, view_flags(h, dtype, n, shape));
	return m ? tensor_from(m) : PyErr_NoMemory();
}

/* Exports a copy. */
static struct export *export_copied(struct hold *h, bool versioned)
{
	DLTensor t = h->managed->dl_tensor;
	struct export *e;

	if (!c_order(&t)) {
		PyErr_SetString(PyExc_BufferError, "copy=True: the tensor is not contiguous");
		return NULL;
	}
	e = export_new(&t);
	if (!e || (h->nbytes && posix_memalign(&e->memory, TL_ALIGNMENT, (size_t)h->nbytes))) {
		export_free(e);
		PyErr_NoMemory();
		return NULL;
	}
	hold_ref(h);
	Py_BEGIN_ALLOW_THREADS;
	if (h->nbytes)
		memcpy(e->memory, (char *)t.data + t.byte_offset, (size_t)h->nbytes);
	hold_unref(h);
	Py_END_ALLOW_THREADS;
	t.data = e->memory;
	t.byte_offset = 0;
	export_set(e, &t,
		   (h->managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) |
			   DLPACK_FLAG_BITMASK_IS_COPIED,
		   versioned);
	return e;
}

/* ---- Capsules ---- */

/* Keeps an exception that is set while the capsule goes away. */
static void capsule_end(PyObject *capsule)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (PyCapsule_IsValid(capsule, VERSIONED)) {
		DLManagedTensorVersioned *m = PyCapsule_GetPointer(capsule, VERSIONED);

		if (m && m->deleter)
			m->deleter(m);
	} else if (PyCapsule_IsValid(capsule, LEGACY)) {
		DLManagedTensor *m = PyCapsule_GetPointer(capsule, LEGACY);

		if (m && m->deleter)
			m->deleter(m);
	} /* otherwise the consumer took it */
	PyErr_Restore(type, value, traceback);
}

static PyObject *capsule_versioned(DLManagedTensorVersioned *m)
{
	PyObject *capsule = PyCapsule_New(m, VERSIONED, capsule_end);

	if (!capsule && m->deleter)
		m->deleter(m);
	return capsule;
}

static PyObject *capsule_of(struct export *e, bool versioned)
{
	PyObject *capsule;

	if (!e)
		return NULL;
	capsule = PyCapsule_New(e, versioned ? VERSIONED : LEGACY, capsule_end);
	if (!capsule)
		export_free(e);
	return capsule;
}

/* ---- Arguments of __dlpack__() ---- */

struct asked {
	bool versioned;
	bool copy, no_copy;
	bool honours_read_only;
	intptr_t stream; /* on a GPU */
};

static int refuse(const char *why, PyObject *value)
{
	PyErr_Format(PyExc_BufferError, "__dlpack__: %s, not %R", why, value);
	return -1;
}

/*
 * Parses a pair of ints. Failures are BufferErrors, because a TypeError would be taken for another
 * signature.
 */
static int parse_pair(PyObject *o, const char *why, long pair[2])
{
	PyErr_Clear();
	if (!PyTuple_Check(o) || PyTuple_Size(o) < 2)
		return refuse(why, o);
	for (int i = 0; i < 2; i++) {
		PyObject *number = PyNumber_Index(PyTuple_GetItem(o, i)); /* works for an IntEnum
									     too */

		pair[i] = number ? PyLong_AsLong(number) : -1;
		Py_XDECREF(number);
		if (pair[i] == -1 && PyErr_Occurred())
			return clear_error() ? refuse(why, o) : -1;
	}
	return 0;
}

static int parse_copy(struct asked *a, PyObject *copy)
{
	int truth;

	if (!copy || copy == Py_None)
		return 0;
	truth = PyObject_IsTrue(copy);
	if (truth < 0)
		return clear_error() ? refuse("copy must be True, False or None", copy) : -1;
	a->copy = truth;
	a->no_copy = !truth;
	return 0;
}

/* On a GPU None means the legacy default stream, as the protocol says. */
static int parse_asked_stream(struct asked *a, const DLTensor *t, PyObject *stream)
{
	long long number;

	if (t->device.device_type != kDLCUDA)
		return !stream || stream == Py_None
			       ? 0
			       : refuse("a tensor in CPU memory has no stream: pass None", stream);
	a->stream = TL_STREAM_LEGACY;
	if (!stream || stream == Py_None)
		return 0;
	number = PyLong_Check(stream) ? PyLong_AsLongLong(stream) : 0;
	if (number == 0 || number < TL_STREAM_NONE || PyErr_Occurred()) {
		PyErr_Clear();
		return refuse(
			"stream must be None or 1 (legacy default), 2 (per-thread default), an address, or -1 (no order)",
			stream);
	}
	a->stream = (intptr_t)number;
	return 0;
}

static int parse_dl_device(const DLTensor *t, PyObject *dl_device)
{
	long device[2];

	if (!dl_device || dl_device == Py_None)
		return 0;
	if (parse_pair(dl_device, "dl_device must be a tuple of two ints or None", device))
		return -1;
	if (device[0] == (long)t->device.device_type && device[1] == t->device.device_id)
		return 0;
	if (t->device.device_type == kDLCUDA && device[0] == kDLCPU)
		return refuse(
			"the tensor is on a GPU, and the CPU cannot read it; torch.from_dlpack(tensor).cpu() "
			"copies it: dl_device must be __dlpack_device__()",
			dl_device);
	return refuse("the tensor stays on its device: dl_device must be __dlpack_device__()",
		      dl_device);
}

static int parse_asked(struct asked *a, const DLTensor *t, PyObject *const *args, Py_ssize_t nargs,
		       PyObject *names)
{
	PyObject *stream = NULL, *max_version = NULL, *dl_device = NULL, *copy = NULL;
	const struct keyword keywords[] = { { "stream", &stream },
					    { "max_version", &max_version },
					    { "dl_device", &dl_device },
					    { "copy", &copy },
					    { NULL, NULL } };
	long version[2] = { 0, 0 };

	memset(a, 0, sizeof(*a));
	if (parse_arguments("__dlpack__", args, nargs, names, 0, keywords))
		return -1;
	if (parse_asked_stream(a, t, stream))
		return -1;
	if (max_version && max_version != Py_None &&
	    parse_pair(max_version, "max_version must be a tuple of two ints or None", version))
		return -1;
	a->versioned = version[0] >= 1;
	if (parse_dl_device(t, dl_device))
		return -1;
	/*
	 * NumPy passes all three at every call, with dl_device None unless the user names a device.
	 * No consumer that ignores READ_ONLY asks in this way: PyTorch omits what it has no value
	 * for.
	 */
	a->honours_read_only = a->versioned && copy && dl_device == Py_None && !stream;
	return parse_copy(a, copy);
}

/*
 * Returns a copy-on-write mapping, for a consumer that might write. Once the daemon has ended, the
 * library may have to copy.
 */
static DLManagedTensorVersioned *remapped(struct hold *h, bool no_copy)
{
	DLManagedTensorVersioned *m;
	int r = hold_remap(h, TL_MODE_COPY_ON_WRITE, &m);

	if (!r && no_copy && m->flags & DLPACK_FLAG_BITMASK_IS_COPIED) {
		m->deleter(m);
		PyErr_SetString(
			PyExc_BufferError,
			"__dlpack__: copy=False: the tensor is read-only, the consumer may write, and "
			"without the daemon that published it there is only a copy to write to");
		return NULL;
	}
	if (!r)
		return m;
	if (PyErr_Occurred())
		return NULL;
	PyErr_Format(
		PyExc_BufferError,
		"__dlpack__: the tensor is read-only, the consumer may write, and there is no copy-on-write "
		"mapping for it (%s); copy=True makes a copy",
		tl_last_error());
	return NULL;
}

/* ---- On a GPU ---- */

static void refuse_gpu_copy(void)
{
	PyErr_SetString(PyExc_BufferError,
			"__dlpack__: a tensor on a GPU is not copied here; the consumer does that: "
			"torch.from_dlpack(tensor).clone(), cupy.from_dlpack(tensor).copy()");
}

/*
 * Takes a lease for a consumer on that stream. A tensor that is not the library's is not ordered.
 */
static struct hold *gpu_hold(struct hold *h, intptr_t stream)
{
	DLManagedTensorVersioned *m;

	if (!hold_is_ours(h))
		return hold_ref(h);
	return hold_lease(h, stream, NULL, wait_end(h->timeout_ns), &m) ? NULL : hold_new(m);
}

static PyObject *gpu_dlpack(const struct array *self, struct hold *h, const struct asked *a)
{
	bool flagged = hold_read_only(h) && !self->unflagged;
	struct export *e;

	if (!hold_usable(h))
		return NULL;
	if (a->copy) {
		refuse_gpu_copy();
		return NULL;
	}
	if (flagged && !a->versioned) {
		PyErr_SetString(
			PyExc_BufferError,
			"__dlpack__: the tensor is read-only, which a DLPack capsule without a version "
			"cannot say; ask with max_version=(1, 0), or hand over tensor.unflagged() if the "
			"consumer does not write");
		return NULL;
	}
	h = gpu_hold(h, a->stream);
	if (!h)
		return NULL;
	hold_used_on(h, a->stream);
	e = export_shared(h, a->versioned);
	hold_unref_py(h);
	if (e && a->versioned && !flagged)
		e->versioned.flags &= ~DLPACK_FLAG_BITMASK_READ_ONLY;
	return capsule_of(e, a->versioned);
}

/* ---- __dlpack__() ---- */

/* Returns a reference, because arguments and other threads may release the object meanwhile. */
static struct hold *exported_hold(PyObject *self)
{
	struct hold *h = ((struct array *)self)->hold;

	if (!h)
		raise_ended(self, PyExc_BufferError);
	return h ? hold_ref(h) : NULL;
}

static bool has_padded_elements(const DLManagedTensorVersioned *m)
{
	return m->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED &&
	       m->dl_tensor.dtype.bits * m->dl_tensor.dtype.lanes % 8;
}

/*
 * Parses the arguments, whose __index__() and __bool__() may end the object. Returns a reference
 * to its hold, or NULL with an exception.
 */
static struct hold *asked_hold(PyObject *self, struct asked *a, PyObject *const *args,
			       Py_ssize_t nargs, PyObject *names)
{
	struct hold *h = exported_hold(self);

	if (!h)
		return NULL;
	if (!parse_asked(a, &h->managed->dl_tensor, args, nargs, names)) {
		if (((struct array *)self)->hold != h)
			raise_ended(self, PyExc_BufferError);
		else if (a->versioned || !has_padded_elements(h->managed))
			return h;
		else
			PyErr_SetString(
				PyExc_BufferError,
				"__dlpack__: each element of less than a byte has a byte of its own, which a "
				"DLPack capsule without a version cannot say; ask with max_version=(1, 0)");
	}
	return hold_unref_py(h);
}

static PyObject *tensor_capsule(PyObject *self, struct hold *h, const struct asked *a)
{
	DLManagedTensorVersioned *m;

	if (hold_on_gpu(h))
		return gpu_dlpack((struct array *)self, h, a);
	if (a->copy)
		return capsule_of(export_copied(h, a->versioned), a->versioned);
	if (!hold_read_only(h) || a->honours_read_only)
		return capsule_of(export_shared(h, a->versioned), a->versioned);
	if (!a->versioned) {
		PyErr_SetString(
			PyExc_BufferError,
			"__dlpack__: the tensor is read-only, which a DLPack capsule without a version "
			"cannot say; get it with mode=\"c\" (copy-on-write), or ask with max_version=(1, 0)");
		return NULL;
	}
	m = remapped(h, a->no_copy);
	return m ? capsule_versioned(m) : NULL;
}

PyObject *tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
	WITH_LOCK;
	struct asked a;
	struct hold *h = asked_hold(self, &a, args, nargs, names);
	PyObject *capsule = h ? tensor_capsule(self, h, &a) : NULL;

	hold_unref_py(h);
	return capsule;
}

static PyObject *draft_capsule(PyObject *self, struct hold *h, const struct asked *a)
{
	if (a->copy && hold_on_gpu(h)) {
		refuse_gpu_copy();
		return NULL;
	}
	if (a->copy)
		return capsule_of(export_copied(h, a->versioned), a->versioned);
	draft_used_on((struct draft *)self, a->stream);
	return capsule_of(export_shared(h, a->versioned), a->versioned);
}

PyObject *draft_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
	struct asked a;
	struct hold *h = asked_hold(self, &a, args, nargs, names);
	PyObject *capsule = h ? draft_capsule(self, h, &a) : NULL;

	hold_unref_py(h);
	return capsule;
}

/* ---- The C exchange interface ---- */

static int api_allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
			void (*SetError)(void *error_ctx, const char *kind, const char *message))
{
	DLTensor t = *prototype;
	struct export *e;
	uint64_t bytes = 1, bits = element_bits(t.dtype, 0);

	if (t.device.device_type != kDLCPU) {
		SetError(error_ctx, "BufferError", "tensorlease allocates in CPU memory only");
		return -1;
	}
	for (int i = 0; i < t.ndim; i++)
		if (t.shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)t.shape[i], &bytes))
			bits = 0;
	if (t.ndim < 0 || !bits || __builtin_mul_overflow(bytes, bits, &bytes)) {
		SetError(error_ctx, "ValueError",
			 "the prototype must have a shape and an element type");
		return -1;
	}
	bytes = bytes / 8 + (bytes % 8 != 0);
	t.strides = NULL;
	t.data = NULL;
	t.byte_offset = 0;
	e = export_new(&t);
	if (!e || (bytes && posix_memalign(&e->memory, TL_ALIGNMENT, (size_t)bytes))) {
		export_free(e);
		SetError(error_ctx, "MemoryError", "no memory for the tensor");
		return -1;
	}
	t.data = e->memory;
	export_set(e, &t, 0, true);
	*out = &e->versioned;
	return 0;
}

/* Exports a tensor that is ready on the stream that api_stream() returns. */
static struct export *api_export_gpu(PyObject *self, struct hold *h)
{
	struct hold *leased;
	struct export *e;

	if (!hold_usable(h))
		return NULL;
	if (is_draft(self)) {
		draft_used_on((struct draft *)self, TL_STREAM_LEGACY);
		return export_shared(h, true);
	}
	leased = gpu_hold(h, TL_STREAM_LEGACY);
	if (!leased)
		return NULL;
	hold_used_on(leased, TL_STREAM_LEGACY);
	e = export_shared(leased, true);
	hold_unref_py(leased);
	if (e && ((struct array *)self)->unflagged)
		e->versioned.flags &= ~DLPACK_FLAG_BITMASK_READ_ONLY;
	return e;
}

/* A consumer of this interface cannot say whether it honours READ_ONLY. */
static int api_from_py(void *py_object, DLManagedTensorVersioned **out)
{
	WITH_LOCK;
	PyObject *self = py_object;
	struct export *e;
	struct hold *h;

	if (!is_tensor(self) && !is_draft(self)) {
		PyErr_Format(PyExc_TypeError, "expected a tensorlease tensor, not %R",
			     Py_TYPE(self));
		return -1;
	}
	if (is_draft(self) && !draft_is_here(self))
		return -1;
	h = exported_hold(self);
	if (!h)
		return -1;
	if (!hold_on_gpu(h) && hold_read_only(h)) {
		*out = remapped(h, false);
	} else {
		e = hold_on_gpu(h) ? api_export_gpu(self, h) : export_shared(h, true);
		*out = e ? &e->versioned : NULL;
	}
	hold_unref_py(h);
	return *out ? 0 : -1;
}

static int api_to_py(DLManagedTensorVersioned *tensor, void **out)
{
	PyObject *o;

	if (tensor->version.major != DLPACK_MAJOR_VERSION) {
		PyErr_Format(PyExc_BufferError,
			     "the tensor is of DLPack %u.%u; only 1.x is supported",
			     tensor->version.major, tensor->version.minor);
		return -1;
	}
	if (tensor->dl_tensor.ndim < 0) {
		PyErr_SetString(PyExc_BufferError,
				"the tensor has a negative number of dimensions");
		return -1;
	}
	o = tensor_from(tensor);
	if (!o)
		return -1;
	((struct array *)o)->hold->foreign = true;
	*out = o;
	return 0;
}

static int api_stream(DLDeviceType type, int32_t id, void **out)
{
	(void)id;
	if (type != kDLCPU && type != kDLCUDA) {
		PyErr_SetString(PyExc_BufferError,
				"tensorlease works on CPUs and on CUDA's GPUs only");
		return -1;
	}
	*out = NULL; /* on a GPU: the legacy default stream */
	return 0;
}

int dlpack_init(PyTypeObject *type)
{
	static DLPackExchangeAPI api = {
		.header = { .version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION } },
		.managed_tensor_allocator = api_allocate,
		.managed_tensor_from_py_object_no_sync = api_from_py,
		.managed_tensor_to_py_object_no_sync = api_to_py,
		/* A borrowed DLTensor has no flags, so that a read-only one would be written to. */
		.dltensor_from_py_object_no_sync = NULL,
		.current_work_stream = api_stream,
	};
	PyObject *capsule = PyCapsule_New(&api, "dlpack_exchange_api", NULL);
	int r = capsule ? PyObject_SetAttrString((PyObject *)type, "__dlpack_c_exchange_api__",
						 capsule)
			: -1;

	Py_XDECREF(capsule);
	return r;
}
