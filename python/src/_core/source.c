/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads arrays of other libraries as DLTensors. Structs of a DLPack producer are hostile until the
 * library has checked them. This file checks only the parts that must be trusted before that: the
 * capsule's name, the version, and that there are as many sizes as dimensions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "draft.h"
#include "source.h"
#include "wait.h"

static int refuse(const char *why)
{
	PyErr_SetString(PyExc_BufferError, why);
	return -1;
}

static int refuse_gpu(void)
{
	raise_text(-ENOTSUP,
		   "the array is on a GPU, but tensors published in one step must be on the CPU: "
		   "publish() it by itself, or copy it to the CPU first");
	return -1;
}

/* ---- DLPack ---- */

static bool is_gpu(long type)
{
	return type == kDLCUDA || type == kDLCUDAManaged;
}

static bool can_read(long type)
{
	return type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost;
}

static long pair_number(PyObject *pair, Py_ssize_t i)
{
	PyObject *index = PyNumber_Index(PyTuple_GetItem(pair, i));
	long number = index ? PyLong_AsLong(index) : -1;

	Py_XDECREF(index);
	return number;
}

/*
 * Returns the device type, or -1; *id is its number. It is asked before __dlpack__(), which might
 * copy between devices or wait for one.
 */
static int check_device(PyObject *array, bool gpu_too, int *id)
{
	PyObject *pair = PyObject_CallMethod(array, "__dlpack_device__", NULL);
	long number = -1;

	if (!pair)
		return -1;
	if (PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
		number = pair_number(pair, 0);
		*id = number < 0 ? -1 : (int)pair_number(pair, 1);
		if (number >= 0)
			clear_error(); /* the type says enough */
	}
	Py_DECREF(pair);
	if (!clear_error())
		return -1;
	if (number < 0)
		return refuse(
			"the array's __dlpack_device__() is not a pair of a type and a number");
	if (can_read(number) || (is_gpu(number) && gpu_too))
		return (int)number;
	if (is_gpu(number))
		return refuse_gpu();
	raise_text(
		-ENOTSUP,
		"the array lies on a device of DLPack type %ld, which is neither a CPU nor a CUDA GPU (2, or 13 for "
		"managed memory); copy it to the CPU first",
		number);
	return -1;
}

/* Calls __dlpack__(stream=..., max_version=...), without the arguments that are not wanted. */
static PyObject *ask_with(PyObject *method, intptr_t stream, bool version)
{
	PyObject *none = PyTuple_New(0), *asked = PyDict_New(), *value;
	PyObject *capsule = NULL;
	int r = none && asked ? 0 : -1;

	if (!r && version) {
		value = Py_BuildValue("(ii)", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
		r = value ? PyDict_SetItemString(asked, "max_version", value) : -1;
		Py_XDECREF(value);
	}
	if (!r && stream != TL_STREAM_DEFAULT) {
		value = PyLong_FromSsize_t(stream);
		r = value ? PyDict_SetItemString(asked, "stream", value) : -1;
		Py_XDECREF(value);
	}
	if (!r)
		capsule = PyObject_Call(method, none, asked);
	Py_XDECREF(asked);
	Py_XDECREF(none);
	return capsule;
}

/* Returns whether the producer may lack some parameters: those of DLPack 1.0 are new. */
static bool ask_again(const PyObject *capsule)
{
	if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError))
		return false;
	PyErr_Clear();
	return true;
}

/*
 * On a GPU the producer makes our stream wait for the writes of the array. Passing no stream should
 * mean the legacy stream, but PyTorch takes it to mean that no order is wanted. So the legacy
 * stream is passed to a producer that knows streams.
 *
 * PyTorch exports only what is on the GPU that is current, so @gpu is made so meanwhile; -1: none.
 */
static PyObject *ask_capsule(const struct source *s, PyObject *array, int gpu)
{
	PyObject *method = PyObject_GetAttrString(array, "__dlpack__");
	struct current_gpu was;
	PyObject *capsule;

	if (!method)
		return NULL;
	was = current_gpu_begin(gpu);
	capsule = ask_with(method, s->stream, true);
	if (ask_again(capsule))
		capsule = ask_with(method, s->stream, false);
	if (s->stream == TL_STREAM_LEGACY && ask_again(capsule))
		capsule = ask_with(method, TL_STREAM_DEFAULT, false);
	current_gpu_end(was);
	Py_DECREF(method);
	return capsule;
}

/*
 * A capsule may contain a struct of the other kind than its name says. Such a struct is not
 * touched, since its deleter lies elsewhere. The first 8 bytes tell them apart: in a legacy struct
 * they are an address, which does not look like a version.
 */
enum { NO_VERSION = 256 };

/* Takes the tensor out of the capsule. From here on we must delete it, whatever the capsule's
 * destructor does. */
static int take_from(PyObject *capsule, const char *used)
{
	return PyCapsule_SetName(capsule, used) || PyCapsule_SetDestructor(capsule, NULL);
}

static int source_versioned(struct source *s, PyObject *capsule)
{
	DLManagedTensorVersioned *m = PyCapsule_GetPointer(capsule, "dltensor_versioned");

	if (m && (!m->version.major || m->version.major >= NO_VERSION))
		return refuse(
			"the array's capsule \"dltensor_versioned\" holds a struct without a version");
	if (!m || take_from(capsule, "used_dltensor_versioned"))
		return -1;
	s->versioned = m;
	if (m->version.major != DLPACK_MAJOR_VERSION)
		return refuse("the array's capsule is of another major version of DLPack");
	s->tensor = m->dl_tensor;
	s->flags = m->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	s->writable = !(m->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
	return 0;
}

static int source_legacy(struct source *s, PyObject *capsule)
{
	DLManagedTensor *m = PyCapsule_GetPointer(capsule, "dltensor");
	DLPackVersion version = { 0 };

	if (m)
		memcpy(&version, m, sizeof(version));
	if (version.major == DLPACK_MAJOR_VERSION && version.minor < NO_VERSION)
		return refuse("the array's capsule \"dltensor\" holds a struct with a version");
	if (!m || take_from(capsule, "used_dltensor"))
		return -1;
	s->legacy = m;
	s->tensor = m->dl_tensor;
	s->writable = true; /* it has no word for the other */
	return 0;
}

/* Managed memory is on the GPU that its address says, and is shared by copies. */
static int name_managed(struct source *s)
{
	DLDevice *device = &s->tensor.device;

	if (device->device_type != kDLCUDAManaged)
		return 0;
	*device = (DLDevice){ kDLCUDA, gpu_of_pointer((uintptr_t)s->tensor.data) };
	return device->device_id < 0 ? refuse("the array's device is managed memory, but its data "
					      "is not on a GPU that CUDA knows")
				     : 0;
}

/* Refuses a tensor on a GPU from an array that did not announce it, since no stream was ordered. */
static int check_capsule(const struct source *s, bool gpu)
{
	if (source_on_gpu(s) == gpu)
		return 0;
	return refuse("the array's __dlpack_device__() and its capsule name different devices");
}

static int source_dlpack(struct source *s, PyObject *array, bool device, const intptr_t *stream)
{
	bool gpu = false;
	int r, id = -1;

	if (device) {
		r = check_device(array, stream != NULL, &id);
		if (r < 0)
			return -1;
		gpu = stream && is_gpu(r); /* check_device() has refused it without one */
		if (r != kDLCUDA)
			id = -1; /* DLPack has no number for managed memory */
	}
	s->stream = !gpu			   ? TL_STREAM_DEFAULT
		    : *stream == TL_STREAM_DEFAULT ? TL_STREAM_LEGACY
						   : *stream;
	s->owner = ask_capsule(s, array, gpu ? id : -1);
	if (!s->owner)
		return -1;
	if (PyCapsule_IsValid(s->owner, "dltensor_versioned"))
		r = source_versioned(s, s->owner);
	else if (PyCapsule_IsValid(s->owner, "dltensor"))
		r = source_legacy(s, s->owner);
	else
		r = refuse("the array's __dlpack__() returned no unused DLPack capsule");
	if (!r)
		r = name_managed(s);
	return r ? r : check_capsule(s, gpu);
}

/* ---- The buffer protocol ---- */

static int stride_in_elements(Py_ssize_t bytes, Py_ssize_t itemsize, int64_t *out)
{
	if (bytes % itemsize)
		return refuse("the array's strides are not multiples of its element size");
	*out = bytes / itemsize;
	return 0;
}

static int source_buffer(struct source *s, PyObject *array)
{
	Py_buffer *v = &s->view;
	DLDataType dtype;
	int64_t step = 1;

	if (PyObject_GetBuffer(array, v, PyBUF_FULL_RO))
		return -1;
	s->has_view = true;
	if (!dtype_from_format(v->format, v->itemsize, &dtype)) {
		PyErr_Format(
			PyExc_BufferError,
			"elements of format '%s' (%zd bytes) have no DLPack type; little-endian integers, "
			"floats, complex numbers and bools have",
			v->format ? v->format : "B", v->itemsize);
		return -1;
	}
	if (v->ndim < 0 || v->ndim > TL_NDIM_MAX || v->suboffsets)
		return refuse("the array has too many dimensions, or pointers to rows");
	for (int i = v->ndim - 1; i >= 0; i--) {
		s->dims[i] = v->shape[i];
		s->dims[TL_NDIM_MAX + i] = step;
		if (v->strides &&
		    stride_in_elements(v->strides[i], v->itemsize, &s->dims[TL_NDIM_MAX + i]))
			return -1;
		step *= v->shape[i] ? v->shape[i] : 1;
	}
	s->writable = !v->readonly;
	s->tensor = (DLTensor){
		.data = v->len ? v->buf : NULL,
		.device = { kDLCPU, 0 },
		.ndim = v->ndim,
		.dtype = dtype,
		.shape = s->dims,
		.strides = s->dims + TL_NDIM_MAX,
	};
	return 0;
}

/* ---- __array_interface__: read by Python code into (address, (code, bits, flags), shape, strides,
 * owner) ---- */

static int fill_dims(int64_t *to, PyObject *from, Py_ssize_t n)
{
	for (Py_ssize_t i = 0; i < n; i++) {
		to[i] = PyLong_AsLongLong(PyTuple_GetItem(from, i));
		if (to[i] == -1 && PyErr_Occurred())
			return -1;
	}
	return 0;
}

static int source_interface(struct source *s, PyObject *array)
{
	PyObject *read = PyObject_CallFunctionObjArgs(interface_reader, array, NULL);
	PyObject *shape, *strides, *owner;
	unsigned long long address, flags;
	int code, bits;
	Py_ssize_t n;

	if (!read)
		return -1;
	if (!PyArg_ParseTuple(read, "K(iiK)O!O!O", &address, &code, &bits, &flags, &PyTuple_Type,
			      &shape, &PyTuple_Type, &strides, &owner)) {
		Py_DECREF(read);
		return -1;
	}
	n = PyTuple_Size(shape);
	if (n > TL_NDIM_MAX || PyTuple_Size(strides) != n || fill_dims(s->dims, shape, n) ||
	    fill_dims(s->dims + TL_NDIM_MAX, strides, n)) {
		Py_DECREF(read);
		return PyErr_Occurred() ? -1 : refuse("__array_interface__: too many dimensions");
	}
	s->owner = read;
	s->flags = flags;
	s->tensor = (DLTensor){
		.data = (void *)(uintptr_t)address,
		.device = { kDLCPU, 0 },
		.ndim = (int32_t)n,
		.dtype = { (uint8_t)code, (uint8_t)bits, 1 },
		.shape = s->dims,
		.strides = s->dims + TL_NDIM_MAX,
	};
	return 0;
}

/* ---- __cuda_array_interface__: (address, dtype, shape, strides, owner, device, stream) ---- */

static int source_cuda(struct source *s, PyObject *array, const intptr_t *stream)
{
	PyObject *read = PyObject_CallFunctionObjArgs(cuda_reader, array, NULL);
	PyObject *shape, *strides, *owner, *theirs;
	unsigned long long address, flags;
	int code, bits, device;
	Py_ssize_t n;

	if (!read)
		return -1;
	s->owner = read;
	if (!PyArg_ParseTuple(read, "K(iiK)O!O!OiO", &address, &code, &bits, &flags, &PyTuple_Type,
			      &shape, &PyTuple_Type, &strides, &owner, &device, &theirs))
		return -1;
	n = PyTuple_Size(shape);
	if (n > TL_NDIM_MAX || PyTuple_Size(strides) != n || fill_dims(s->dims, shape, n) ||
	    fill_dims(s->dims + TL_NDIM_MAX, strides, n))
		return PyErr_Occurred() ? -1
					: refuse("__cuda_array_interface__: too many dimensions");
	if (!stream)
		return refuse_gpu();
	s->stream = *stream; /* the user's stream takes precedence over the interface's */
	if (s->stream == TL_STREAM_DEFAULT && parse_stream(theirs, &s->stream))
		return -1;
	if (s->stream == TL_STREAM_DEFAULT)
		s->stream = TL_STREAM_LEGACY;
	s->flags = flags;
	s->tensor = (DLTensor){
		.data = (void *)(uintptr_t)address,
		.device = { kDLCUDA, device },
		.ndim = (int32_t)n,
		.dtype = { (uint8_t)code, (uint8_t)bits, 1 },
		.shape = s->dims,
		.strides = s->dims + TL_NDIM_MAX,
	};
	return 0;
}

/* ---- All ---- */

static int lease_for(struct source *s, intptr_t stream)
{
	if (stream == TL_STREAM_DEFAULT && s->hold->drafted) {
		if (!stream_known(s->hold->many_streams))
			return -1;
		stream = stream_here(s->hold->stream);
	}
	s->stream = stream == TL_STREAM_DEFAULT ? TL_STREAM_LEGACY : stream;
	if (!hold_usable(s->hold))
		return -1;
	if (!hold_is_ours(s->hold)) /* a draft's, or another library's */
		return 0;
	return hold_lease(s->hold, s->stream, NULL, wait_end(s->hold->timeout_ns), &s->versioned)
		       ? -1
		       : 0;
}

static int source_ours(struct source *s, PyObject *array, const intptr_t *stream)
{
	struct hold *h = is_draft(array) && !draft_is_here(array) ? NULL : array_hold(array);

	if (!h)
		return -1;
	s->hold = hold_ref(h);
	s->tensor = h->managed->dl_tensor;
	s->flags = h->managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	s->writable = !hold_read_only(h);
	if (!hold_on_gpu(h))
		return 0;
	if (!stream)
		return refuse_gpu();
	if (is_draft(array)) {
		struct draft *d = (struct draft *)array;

		if (*stream == TL_STREAM_DEFAULT && !draft_stream_known(d))
			return -1;
		s->stream = *stream != TL_STREAM_DEFAULT	    ? *stream
			    : d->stream.number != TL_STREAM_DEFAULT ? stream_here(d->stream)
								    : TL_STREAM_LEGACY;
		return 0;
	}
	return lease_for(s, *stream);
}

/* Returns whether another protocol may be tried: __dlpack__() refuses tensors that it cannot
 * express, such as read-only ones in a legacy capsule. */
static bool may_fall_back(void)
{
	return PyErr_ExceptionMatches(PyExc_BufferError) ||
	       PyErr_ExceptionMatches(PyExc_TypeError) ||
	       PyErr_ExceptionMatches(PyExc_RuntimeError) ||
	       PyErr_ExceptionMatches(PyExc_AttributeError) ||
	       PyErr_ExceptionMatches(PyExc_ValueError);
}

/* The protocols of an array, which decide how it is read. */
struct traits {
	PyTypeObject *type;
	bool buffer, interface, dlpack, device;
	bool masked;  /* only arrays of numpy.ma are */
	bool negates; /* it has is_neg(), as only PyTorch's tensors do */
	bool fixed;   /* all arrays of that type have the same traits */
};

/* May run code of the array. Leaves KeyboardInterrupt and its like set. */
static bool object_has(PyObject *array, const char *name)
{
	PyObject *value;

	if (PyErr_Occurred())
		return false;
	value = PyObject_GetAttrString(array, name);
	if (!value)
		clear_error();
	Py_XDECREF(value);
	return value != NULL;
}

/* For what may be a property. Asks the type first: one that copies all of the array is then read
 * only once. */
static bool has(PyObject *array, const char *name)
{
	return object_has((PyObject *)Py_TYPE(array), name) || object_has(array, name);
}

/* NumPy's scalars of time show their buffer as bytes, and only their interface says what they are.
 */
static bool is_time(PyObject *array)
{
	PyObject *dtype = PyObject_GetAttrString(array, "dtype");
	PyObject *kind = dtype ? PyObject_GetAttrString(dtype, "kind") : NULL;
	bool is = kind && PyUnicode_Check(kind) &&
		  (!PyUnicode_CompareWithASCIIString(kind, "M") ||
		   !PyUnicode_CompareWithASCIIString(kind, "m"));

	if (!kind)
		clear_error();
	Py_XDECREF(kind);
	Py_XDECREF(dtype);
	return is;
}

static struct traits traits_read(PyObject *array)
{
	struct traits t = {
		.type = Py_TYPE(array),
		.buffer = PyObject_CheckBuffer(array),
		.interface = has(array, "__array_interface__"),
		.dlpack = has(array, "__dlpack__"),
		.device = has(array, "__dlpack_device__") && object_has(array, "__dlpack_device__"),
		.masked = has(array, "_sharedmask"),
		.negates = has(array, "is_neg"),
	};

	if (t.buffer && t.interface && !t.dlpack && is_time(array))
		t.buffer = false;
	t.fixed = !(PyType_GetFlags(Py_TYPE(array)) & Py_TPFLAGS_HEAPTYPE) &&
		  !object_has(array, "__dict__") && !PyErr_Occurred(); /* of any of these */
	return t;
}

/*
 * Asking for an attribute that is missing takes longer than the copy of a small tensor. A static
 * type whose objects have no attributes of their own, such as numpy.ndarray or bytes, never
 * changes, so its answers are kept. The extension's lock is held.
 */
static struct traits traits_of(PyObject *array)
{
	static struct traits known[8];
	static unsigned next;
	struct traits t;

	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].type == Py_TYPE(array))
			return known[i];
	t = traits_read(array);
	if (t.fixed)
		known[next++ % (sizeof(known) / sizeof(known[0]))] = t;
	return t;
}

/* Refuses arrays whose own DLPack would lose something: numpy.ma drops the mask, and PyTorch drops
 * that a view is negated (x.conj().imag). */
static int check_dropped(PyObject *array, const struct traits *t)
{
	PyObject *negated;
	int truth;

	if (t->masked)
		return refuse("a masked array has no DLPack type; publish its .data, or .filled()");
	if (!t->negates)
		return 0;
	negated = PyObject_CallMethod(array, "is_neg", NULL);
	truth = negated ? PyObject_IsTrue(negated) : -1;
	Py_XDECREF(negated);
	if (truth > 0)
		return refuse(
			"PyTorch's DLPack loses the sign of this view; publish its .resolve_neg()");
	return clear_error() ? 0 : -1;
}

static int source_any(struct source *s, PyObject *array, const intptr_t *stream);

/*
 * Reads an object without any of the protocols: numbers, as the array that NumPy makes of them. An
 * array to write into has no stream, and what was made here would be lost with what is written.
 */
static int source_values(struct source *s, PyObject *values, const intptr_t *stream)
{
	PyObject *array = PyObject_CallFunctionObjArgs(values_reader, values,
						       stream ? Py_True : Py_False, NULL);
	int r = array ? source_any(s, array, stream) : -1;

	Py_XDECREF(array); /* the source keeps it */
	return r;
}

static int source_any(struct source *s, PyObject *array, const intptr_t *stream)
{
	const struct traits t = traits_of(array);

	if (!t.fixed && PyErr_Occurred())
		return -1;
	if (check_dropped(array, &t))
		return -1;
	if (t.fixed && t.buffer && t.dlpack) { /* numpy.ndarray: DLPack gives the same, slowly */
		if (!source_buffer(s, array))
			return 0;
		PyErr_Clear();
		source_end(s);
	}
	if (t.dlpack) {
		if (!source_dlpack(s, array, t.device, stream))
			return 0;
		if (!(t.buffer || t.interface) || !may_fall_back())
			return -1;
		PyErr_Clear();
		source_end(s);
	}
	if (t.buffer) {
		if (!source_buffer(s, array))
			return 0;
		if (!t.interface || !may_fall_back())
			return -1;
		PyErr_Clear();
		source_end(s);
	}
	if (t.interface) {
		if (!source_interface(s, array))
			return 0;
		if (!PyErr_ExceptionMatches(PyExc_AttributeError)) /* else its property has none */
			return -1;
		PyErr_Clear();
		source_end(s);
	}
	if (object_has(array, "__cuda_array_interface__"))
		return source_cuda(s, array, stream);
	if (PyErr_Occurred())
		return -1;
	return source_values(s, array, stream);
}

int source_begin(struct source *s, PyObject *array, const intptr_t *stream)
{
	int r;

	memset(s, 0, offsetof(struct source, dims));
	r = is_tensor(array) || is_draft(array) ? source_ours(s, array, stream)
						: source_any(s, array, stream);
	if (!r && (s->tensor.ndim < 0 || (s->tensor.ndim && !s->tensor.shape)))
		r = refuse("the array's DLPack tensor has no shape, or fewer than 0 dimensions");
	if (r)
		source_end(s);
	return r;
}

/*
 * Keeps an exception that is set: deleters and a refused capsule's destructor may run Python code.
 */
void source_end(struct source *s)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (s->versioned && s->hold)
		lease_end(s->versioned);
	else if (s->versioned && s->versioned->deleter)
		s->versioned->deleter(s->versioned);
	if (s->legacy && s->legacy->deleter)
		s->legacy->deleter(s->legacy);
	if (s->has_view)
		PyBuffer_Release(&s->view);
	hold_unref_py(s->hold);
	Py_XDECREF(s->owner);
	memset(s, 0, offsetof(struct source, dims));
	PyErr_Restore(type, value, traceback);
}

/* ---- Handing it over ---- */

struct owned {
	DLManagedTensorVersioned managed;
	DLManagedTensorVersioned *versioned; /* or */
	DLManagedTensor *legacy;	     /* or */
	struct hold *hold;		     /* or */
	PyObject *owner;
	int64_t dims[];
};

/* Runs on any thread, perhaps one of the library's, perhaps after the interpreter has ended. The
 * deleters of other libraries need that. */
static void owned_delete(DLManagedTensorVersioned *managed)
{
	struct owned *o = (struct owned *)managed;

	if (interpreter_enter()) {
		if (o->versioned && o->versioned->deleter)
			o->versioned->deleter(o->versioned);
		if (o->legacy && o->legacy->deleter)
			o->legacy->deleter(o->legacy);
		interpreter_leave();
	}
	hold_unref_any(o->hold);
	owner_give_up(o->owner);
	free(o);
}

int source_own(struct source *s)
{
	size_t ndim = (size_t)s->tensor.ndim;
	struct owned *o;

	if (s->versioned && s->hold) /* the library's */
		return 0;
	o = calloc(1, sizeof(*o) + 2 * sizeof(int64_t) * ndim);
	if (!o) {
		PyErr_NoMemory();
		return -1;
	}
	o->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.deleter = owned_delete,
		.flags = s->flags,
		.dl_tensor = s->tensor,
	};
	o->versioned = s->versioned;
	o->legacy = s->legacy;
	s->legacy = NULL;
	o->hold = s->hold;
	s->hold = NULL;
	if (!o->versioned && !o->legacy && !o->hold) { /* __cuda_array_interface__ */
		o->owner = s->owner;
		s->owner = NULL;
		for (size_t i = 0; i < ndim; i++) {
			o->dims[i] = s->tensor.shape[i];
			o->dims[ndim + i] = s->tensor.strides[i];
		}
		o->managed.dl_tensor.shape = o->dims;
		o->managed.dl_tensor.strides = o->dims + ndim;
	}
	s->versioned = &o->managed;
	return 0;
}

int source_of_hold(struct source *s, struct hold *h)
{
	memset(s, 0, offsetof(struct source, dims));
	s->tensor = h->managed->dl_tensor;
	s->flags = h->managed->flags;
	s->hold = hold_ref(h);
	if (!source_own(s))
		return 0;
	source_end(s);
	return -1;
}

int copies_add(struct copies *c, const struct source *s)
{
	if (!source_on_gpu(s))
		return 0;
	if (c->on_gpu && c->stream != s->stream) {
		PyErr_SetString(PyExc_ValueError,
				"it is on another stream than the arrays before it: synchronise, "
				"and put them with stream=-1");
		return -1;
	}
	c->on_gpu = true;
	c->stream = s->stream;
	c->sealed = c->named == TL_STREAM_DEFAULT;
	return 0;
}
