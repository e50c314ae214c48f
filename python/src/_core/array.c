/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of Tensor and Draft: the hold, the properties, and the buffer protocol. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "fault.h"
#include "lock.h"
#include "transfer/transfer.h"

/* ---- Element types ---- */

static const struct dtype_row {
	uint8_t code, bits;
	const char *format; /* of the buffer protocol, in native byte order */
} formats[] = {
	{ kDLInt, 8, "b" },	   { kDLInt, 16, "h" },	  { kDLInt, 32, "i" },
	{ kDLInt, 64, "l" },	   { kDLUInt, 8, "B" },	  { kDLUInt, 16, "H" },
	{ kDLUInt, 32, "I" },	   { kDLUInt, 64, "L" },  { kDLFloat, 16, "e" },
	{ kDLFloat, 32, "f" },	   { kDLFloat, 64, "d" }, { kDLComplex, 64, "Zf" },
	{ kDLComplex, 128, "Zd" }, { kDLBool, 8, "?" },
};

static const char *dtype_format(DLDataType t)
{
	if (t.lanes != 1)
		return NULL;
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
		if (formats[i].code == t.code && formats[i].bits == t.bits)
			return formats[i].format;
	return NULL;
}

/* Letters of struct's formats only tell the kind; the width is the itemsize. */
static int code_of_letter(char c)
{
	switch (c) {
	case 'b':
	case 'h':
	case 'i':
	case 'l':
	case 'q':
	case 'n':
		return kDLInt;
	case 'B':
	case 'H':
	case 'I':
	case 'L':
	case 'Q':
	case 'N':
	case 'c':
		return kDLUInt;
	case 'e':
	case 'f':
	case 'd':
		return kDLFloat;
	case '?':
		return kDLBool;
	default:
		return -1;
	}
}

bool dtype_from_format(const char *format, Py_ssize_t itemsize, DLDataType *out)
{
	int code;

	if (!format)
		format = "B";
	if (*format == '@' || *format == '=' || *format == '<' ||
	    ((*format == '>' || *format == '!') && itemsize == 1))
		format++;
	if (format[0] == 'Z' && (format[1] == 'f' || format[1] == 'd') && !format[2])
		code = kDLComplex;
	else if (format[0] && !format[1])
		code = code_of_letter(format[0]);
	else
		return false;
	if (code < 0 || itemsize < 1 || itemsize > 16)
		return false;
	*out = (DLDataType){ (uint8_t)code, (uint8_t)(itemsize * 8), 1 };
	return dtype_format(*out) != NULL;
}

PyObject *dtype_text(DLDataType t)
{
	char text[TRANSFER_DTYPE_TEXT];

	return PyUnicode_InternFromString(transfer_dtype(t, text));
}

PyObject *device_text(DLDevice device)
{
	static const char *const names[] = {
		[kDLCPU] = "cpu",   [kDLCUDA] = "cuda",		 [kDLCUDAHost] = "cuda_host",
		[kDLROCM] = "rocm", [kDLROCMHost] = "rocm_host", [kDLCUDAManaged] = "cuda_managed"
	};
	unsigned type = device.device_type;

	if (type == kDLCPU)
		return PyUnicode_InternFromString("cpu");
	if (type == kDLCUDA && device.device_id < 0) /* this process has not used that GPU yet */
		return PyUnicode_InternFromString("cuda");
	if (type < sizeof(names) / sizeof(*names) && names[type])
		return PyUnicode_FromFormat("%s:%d", names[type], (int)device.device_id);
	return PyUnicode_FromFormat("device%u:%d", type, (int)device.device_id);
}

uint32_t element_bits(DLDataType t, uint64_t flags)
{
	uint32_t bits = (uint32_t)t.bits * t.lanes;

	return flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED ? (bits + 7) / 8 * 8 : bits;
}

/* ---- The hold ---- */

struct hold *hold_new(DLManagedTensorVersioned *managed)
{
	const DLTensor *t = &managed->dl_tensor;
	uint32_t bits = element_bits(t->dtype, managed->flags);
	struct hold *h = malloc(sizeof(*h) + 2 * sizeof(Py_ssize_t) * (size_t)t->ndim);
	uint64_t n = 1;

	if (!h) {
		if (managed->deleter)
			lease_end(managed);
		PyErr_NoMemory();
		return NULL;
	}
	atomic_init(&h->refs, 1);
	h->managed = managed;
	h->base = dlpack_base(managed);
	h->foreign = false;
	h->stream = (struct stream){ TL_STREAM_DEFAULT, 0 };
	h->drafted = h->many_streams = false;
	h->stream_owner = NULL;
	h->timeout_ns = CLIENT_TIMEOUT_NS;
	h->pid = hold_on_gpu(h) ? getpid() : 0;
	h->shape = h->byte_strides + t->ndim;
	for (int i = 0; i < t->ndim; i++) {
		h->shape[i] = (Py_ssize_t)t->shape[i];
		n *= (uint64_t)t->shape[i];
	}
	h->nbytes = bits % 8 ? (n * bits + 7) / 8 : n * (bits / 8);
	n = bits / 8;
	for (int i = t->ndim - 1; i >= 0; i--) {
		if (t->strides) {
			h->byte_strides[i] = (Py_ssize_t)(t->strides[i] * (int64_t)(bits / 8));
			continue;
		}
		h->byte_strides[i] = (Py_ssize_t)n;
		n *= t->shape[i] ? (uint64_t)t->shape[i] : 1;
	}
	h->noted = h->base ? -1 : fault_note(managed, h->nbytes);
	return h;
}

struct hold *hold_ref(struct hold *h)
{
	atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
	return h;
}

void owner_give_up(PyObject *owner)
{
	PyGILState_STATE state;

	if (!owner || !interpreter_enter())
		return;
	state = PyGILState_Ensure();
	Py_DECREF(owner);
	PyGILState_Release(state);
	interpreter_leave();
}

static void managed_end(const struct hold *h)
{
	if (!h->managed || !h->managed->deleter || (h->foreign && !interpreter_enter()))
		return;
	h->managed->deleter(h->managed);
	if (h->foreign)
		interpreter_leave();
}

struct hold *hold_unref(struct hold *h)
{
	if (h && atomic_fetch_sub(&h->refs, 1) == 1) {
		fault_forget(h->noted);
		managed_end(h);
		owner_give_up(h->stream_owner);
		free(h);
	}
	return NULL;
}

enum { SLOW_END = 1 << 20 }; /* bytes of a private mapping from which unmapping may take long */

/* On a GPU the end may wait for space on a stream, whose work may need the GIL. */
static bool may_wait(const struct hold *h)
{
	return h->managed && (hold_on_gpu(h) || (!hold_read_only(h) && h->nbytes >= SLOW_END));
}

struct hold *hold_unref_py(struct hold *h)
{
	if (h && may_wait(h)) {
		Py_BEGIN_ALLOW_THREADS;
		hold_unref(h);
		Py_END_ALLOW_THREADS;
		return NULL;
	}
	return hold_unref(h);
}

struct hold *hold_unref_any(struct hold *h)
{
	return h && h->managed && hold_on_gpu(h) && gil_is_held() ? hold_unref_py(h)
								  : hold_unref(h);
}

void lease_end(DLManagedTensorVersioned *managed)
{
	Py_BEGIN_ALLOW_THREADS;
	managed->deleter(managed);
	Py_END_ALLOW_THREADS;
}

void array_deinit(PyObject *self)
{
	struct array *a = (struct array *)self;

	a->hold = hold_unref_py(a->hold);
	a->lasting = hold_unref_py(a->lasting);
	Py_CLEAR(a->draft);
}

struct hold *array_hold(PyObject *self)
{
	struct hold *h = ((struct array *)self)->hold;

	if (!h)
		raise_ended(self, PyExc_ValueError);
	return h;
}

/* ---- Getters ---- */

PyObject *shape_tuple(int ndim, const int64_t *shape)
{
	PyObject *tuple = PyTuple_New(ndim);

	for (int i = 0; tuple && i < ndim; i++) {
		PyObject *size = PyLong_FromLongLong(shape[i]);

		if (!size || PyTuple_SetItem(tuple, i, size)) {
			Py_DECREF(tuple);
			return NULL;
		}
	}
	return tuple;
}

PyObject *array_get_shape(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	PyObject *tuple;

	(void)unused;
	if (!h)
		return NULL;
	hold_ref(h); /* the tuple's allocation may run a collection, and that anything */
	tuple = shape_tuple(h->managed->dl_tensor.ndim, h->managed->dl_tensor.shape);
	hold_unref_py(h);
	return tuple;
}

PyObject *array_get_dtype(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? dtype_text(h->managed->dl_tensor.dtype) : NULL;
}

PyObject *array_get_dtype_tuple(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	DLDataType t;

	(void)unused;
	if (!h)
		return NULL;
	t = h->managed->dl_tensor.dtype;
	return Py_BuildValue("iii", t.code, t.bits, t.lanes);
}

PyObject *array_get_strides(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	const DLTensor *t;
	PyObject *tuple;

	(void)unused;
	if (!h)
		return NULL;
	t = &h->managed->dl_tensor;
	if (element_bits(t->dtype, h->managed->flags) % 8)
		Py_RETURN_NONE;
	hold_ref(h); /* as above */
	tuple = PyTuple_New(t->ndim);
	for (int i = 0; tuple && i < t->ndim; i++) {
		PyObject *step = PyLong_FromSsize_t(h->byte_strides[i]);

		if (!step || PyTuple_SetItem(tuple, i, step))
			Py_CLEAR(tuple);
	}
	hold_unref_py(h);
	return tuple;
}

PyObject *array_get_nbytes(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? PyLong_FromUnsignedLongLong(h->nbytes) : NULL;
}

PyObject *array_get_ndim(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? PyLong_FromLong(h->managed->dl_tensor.ndim) : NULL;
}

PyObject *array_get_size(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	unsigned long long n = 1;

	(void)unused;
	if (!h)
		return NULL;
	for (int i = 0; i < h->managed->dl_tensor.ndim; i++)
		n *= (unsigned long long)h->managed->dl_tensor.shape[i];
	return PyLong_FromUnsignedLongLong(n);
}

PyObject *array_get_itemsize(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	uint32_t bits;

	(void)unused;
	if (!h)
		return NULL;
	bits = element_bits(h->managed->dl_tensor.dtype, h->managed->flags);
	return bits % 8 ? PyFloat_FromDouble(bits / 8.0) : PyLong_FromUnsignedLong(bits / 8);
}

PyObject *array_get_device(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? device_text(h->managed->dl_tensor.device) : NULL;
}

PyObject *array_get_read_only(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? PyBool_FromLong(hold_read_only(h)) : NULL;
}

PyObject *array_get_released(PyObject *self, void *unused)
{
	WITH_LOCK;
	(void)unused;
	return PyBool_FromLong(!((struct array *)self)->hold);
}

PyObject *array_get_address(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	const DLTensor *t;

	(void)unused;
	if (!h)
		return NULL;
	t = &h->managed->dl_tensor;
	return PyLong_FromVoidPtr(t->data ? (char *)t->data + t->byte_offset : NULL);
}

PyObject *array_dlpack_device(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	DLDevice device;

	(void)unused;
	if (!h)
		return NULL;
	device = h->managed->dl_tensor.device;
	return Py_BuildValue("ii", (int)device.device_type, (int)device.device_id);
}

/* ---- Buffers ---- */

static const char *buffer_refusal(const struct hold *h, int flags)
{
	const DLTensor *t = &h->managed->dl_tensor;

	if (t->device.device_type != kDLCPU)
		return "the tensor is on a GPU, whose memory the CPU cannot read: torch.from_dlpack(tensor).cpu()";
	if ((flags & PyBUF_WRITABLE) && hold_read_only(h))
		return "the tensor is read-only; get it with mode=\"c\" to write to a copy-on-write view";
	if (element_bits(t->dtype, h->managed->flags) % 8)
		return "the buffer protocol has no packed elements of less than a byte; bytes() has their "
		       "bytes";
	if ((flags & (PyBUF_FORMAT | PyBUF_ND)) && !dtype_format(t->dtype))
		return "the buffer protocol has no format for this dtype; ask for plain bytes or for "
		       "bytes(), or use DLPack";
	return NULL;
}

/* Tensors of other libraries may be strided; the library's are in C order. */
static bool in_c_order(const struct hold *h)
{
	const DLTensor *t = &h->managed->dl_tensor;
	int64_t step = 1;

	for (int i = t->ndim - 1; t->strides && h->nbytes && i >= 0; i--) {
		if (t->shape[i] != 1 && t->strides[i] != step)
			return false;
		step *= t->shape[i];
	}
	return true;
}

static bool one_dimensional(const DLTensor *t)
{
	int longer = 0;

	for (int i = 0; i < t->ndim; i++)
		longer += t->shape[i] != 1;
	return longer < 2;
}

static struct hold *remap_writable(struct hold *h)
{
	DLManagedTensorVersioned *m;

	if (!hold_remap(h, TL_MODE_COPY_ON_WRITE, &m))
		return hold_new(m);
	if (PyErr_Occurred())
		return NULL;
	PyErr_Format(
		PyExc_BufferError,
		"a consumer of plain bytes may write, and there is no copy-on-write mapping for it (%s); "
		"hand over memoryview(tensor)",
		tl_last_error());
	return NULL;
}

/*
 * Consumers give a buffer back at once and use the memory as long as they have the view's object:
 * torch.frombuffer(), and numpy.ndarray(buffer=) of a memoryview. So that object is another Tensor,
 * and the lease ends with the last reference to it. torch.frombuffer() and torch.asarray() ask for
 * plain bytes and write to them, even if they are read-only, so that they get a copy-on-write
 * mapping then. Returns a new reference, or NULL with an exception.
 */
static PyObject *exporter(PyObject *self, struct hold *h, int flags)
{
	bool must_remap = !(flags & PyBUF_ND) && hold_read_only(h) && h->nbytes;
	PyObject *other = tensor_over(must_remap ? remap_writable(h) : hold_ref(h));

	if (other && is_draft(self))
		((struct array *)other)->draft = Py_NewRef(self);
	return other;
}

/* numpy.ndarray(buffer=) of an object that is no memoryview keeps that object, and not the view's.
 */
static bool keeps_the_exported(int flags)
{
	return (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !(flags & PyBUF_FORMAT);
}

/* Whether the code of the function that runs now has that name, of a variable or an attribute. */
static int caller_names(const char *name)
{
	PyFrameObject *frame = PyEval_GetFrame();
	PyObject *code = frame ? (PyObject *)PyFrame_GetCode(frame) : NULL;
	PyObject *names = code ? PyObject_GetAttrString(code, "co_names") : NULL;
	PyObject *text = names ? PyUnicode_FromString(name) : NULL;
	int found = text ? PySequence_Contains(names, text) : 0;

	Py_XDECREF(text);
	Py_XDECREF(names);
	Py_XDECREF(code);
	return found;
}

/*
 * torch.asarray() asks for plain bytes before it asks for DLPack, and makes float32 of them. It is
 * known by the exception of its former request, for bytes to write to, which is still set, and by
 * the name in the code that calls it: torch.frombuffer() asks alike, but is told the type. Returns
 * true with an exception, whose text PyTorch drops, so that there is a warning too.
 */
static bool refuse_asarray(int flags)
{
	static const char why[] =
		"torch.asarray() would take the tensor for plain bytes, and make float32 of them: use "
		"tensor.torch() or torch.from_dlpack(tensor)";
	PyObject *type, *value, *traceback;
	bool is_asarray;

	if (flags || !PyErr_Occurred())
		return false;
	PyErr_Fetch(&type, &value, &traceback);
	is_asarray = caller_names("asarray") > 0 && caller_names("frombuffer") == 0;
	if (is_asarray && !PyErr_WarnEx(PyExc_RuntimeWarning, why, 1))
		PyErr_SetString(PyExc_BufferError, why);
	if (!is_asarray) {
		PyErr_Restore(type, value, traceback);
		return false;
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return true;
}

/* The bits of PyBUF_C_CONTIGUOUS and the like beside those of PyBUF_STRIDES. */
enum {
	C_CONTIGUOUS = PyBUF_C_CONTIGUOUS & ~PyBUF_STRIDES,
	F_CONTIGUOUS = PyBUF_F_CONTIGUOUS & ~PyBUF_STRIDES,
	ANY_CONTIGUOUS = PyBUF_ANY_CONTIGUOUS & ~PyBUF_STRIDES,
	CONTIGUOUS = C_CONTIGUOUS | F_CONTIGUOUS | ANY_CONTIGUOUS,
};

int array_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
	static char none;
	struct hold *h = ((struct array *)self)->hold;
	PyObject *other;
	const char *why;
	const DLTensor *t;

	view->obj = NULL;
	if (!h) {
		raise_ended(self, PyExc_BufferError);
		return -1;
	}
	why = buffer_refusal(h, flags);
	if (!why && !in_c_order(h) &&
	    ((flags & PyBUF_STRIDES) != PyBUF_STRIDES || flags & CONTIGUOUS))
		why = "the tensor is not contiguous";
	if (!why && (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && h->nbytes &&
	    !one_dimensional(&h->managed->dl_tensor))
		why = "the tensor is in C order, not in Fortran order";
	if (why) {
		PyErr_SetString(PyExc_BufferError, why);
		return -1;
	}
	if (refuse_asarray(flags))
		return -1;
	h = ((struct array *)self)->hold; /* again: the warning may have run code */
	if (!h) {
		raise_ended(self, PyExc_BufferError);
		return -1;
	}
	view->readonly = hold_read_only(h);
	other = exporter(self, h, flags);
	if (!other)
		return -1;
	h = hold_ref(((struct array *)other)->hold); /* the allocation may have released ours */
	if (keeps_the_exported(flags) && !((struct array *)self)->lasting)
		((struct array *)self)->lasting = hold_ref(h);
	t = &h->managed->dl_tensor;
	view->internal = h;
	view->buf = t->data ? (char *)t->data + t->byte_offset : &none;
	view->len = (Py_ssize_t)h->nbytes;
	view->itemsize = (Py_ssize_t)element_bits(t->dtype, h->managed->flags) / 8;
	view->format = flags & PyBUF_FORMAT ? (char *)dtype_format(t->dtype) : NULL;
	view->ndim = flags & PyBUF_ND ? t->ndim : 1;
	view->shape = flags & PyBUF_ND && t->ndim ? h->shape : NULL;
	view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES && t->ndim ? h->byte_strides
									    : NULL;
	view->suboffsets = NULL;
	view->obj = other;
	return 0;
}

void array_release_buffer(PyObject *self, Py_buffer *view)
{
	WITH_LOCK;
	(void)self;
	view->internal = hold_unref_py(view->internal);
}
