/* SPDX-License-Identifier: Apache-2.0 */
/* The Tensor: a lease as a Python object. */
#include <errno.h>
#include <string.h>

#include "cuda.h"
#include "lock.h"

PyTypeObject *tensor_base;

static allocfunc allocate;

bool is_tensor(PyObject *o)
{
	return PyObject_TypeCheck(o, tensor_base);
}

PyObject *tensor_over_as(PyTypeObject *type, struct hold *h)
{
	PyObject *self;

	if (!h)
		return NULL;
	self = allocate(type, 0);
	if (!self) {
		hold_unref_py(h);
		return NULL;
	}
	((struct array *)self)->hold = h;
	return self;
}

PyObject *tensor_over(struct hold *h)
{
	return tensor_over_as(tensor_type ? tensor_type : tensor_base, h);
}

PyObject *tensor_from(DLManagedTensorVersioned *managed)
{
	return tensor_over(hold_new(managed));
}

PyObject *tensor_got(const struct client *c, DLManagedTensorVersioned *managed)
{
	PyObject *self = tensor_from(managed);

	if (self)
		((struct array *)self)->hold->timeout_ns = c->timeout_ns;
	return self;
}

PyObject *array_share(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? tensor_over(hold_ref(h)) : NULL;
}

static PyObject *tensor_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)args;
	(void)kwargs;
	PyErr_Format(PyExc_TypeError, "%R objects come from Client.get()", type);
	return NULL;
}

static void tensor_dealloc(PyObject *self)
{
	WITH_LOCK;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);

	array_deinit(self);
	end(self);
	Py_DECREF(type);
}

static PyObject *tensor_release(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct array *t = (struct array *)self;
	struct hold *h = t->hold;

	(void)unused;
	t->hold = NULL;
	hold_unref_py(h);
	Py_RETURN_NONE;
}

static PyObject *tensor_exit(PyObject *self, PyObject *args)
{
	(void)args;
	return tensor_release(self, NULL);
}

static PyObject *tensor_enter(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	(void)unused;
	return array_hold(self) ? Py_NewRef(self) : NULL;
}

/* ---- Its description ---- */

/* Returns false if the tensor is not the library's, but came through the exchange interface. */
static bool tensor_info(PyObject *self, tl_info *info)
{
	struct hold *h = array_hold(self);

	return h && !tl_tensor_info(h->base ? h->base->managed : h->managed, info);
}

static PyObject *none_or_error(void)
{
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *get_name(PyObject *self, void *unused)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };

	(void)unused;
	return tensor_info(self, &info) ? PyUnicode_FromString(info.name) : none_or_error();
}

static PyObject *get_version(PyObject *self, void *unused)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };

	(void)unused;
	return tensor_info(self, &info) ? PyLong_FromUnsignedLongLong(info.version)
					: none_or_error();
}

static PyObject *get_metadata(PyObject *self, void *unused)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };

	(void)unused;
	return tensor_info(self, &info)
		       ? PyBytes_FromStringAndSize((const char *)info.metadata, info.metadata_size)
		       : none_or_error();
}

static PyObject *get_committed_ns(PyObject *self, void *unused)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };

	(void)unused;
	return tensor_info(self, &info) ? PyLong_FromUnsignedLongLong(info.committed_ns)
					: none_or_error();
}

static PyObject *get_copied(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? PyBool_FromLong(hold_copied(h)) : NULL;
}

static PyObject *get_lost(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);

	(void)unused;
	return h ? PyBool_FromLong(tl_tensor_check(h->managed) == -ENODATA) : NULL;
}

static PyObject *get_uid(PyObject *self, void *unused)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };

	(void)unused;
	return tensor_info(self, &info) ? PyLong_FromUnsignedLong(info.uid) : none_or_error();
}

/* _remap(mode): another Tensor of the same version. */
static PyObject *tensor_remap(PyObject *self, PyObject *mode_text)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	DLManagedTensorVersioned *m;
	PyObject *other;
	enum tl_mode mode;
	int64_t timeout_ns;
	int r;

	if (!h || parse_mode(mode_text, &mode))
		return NULL;
	if (hold_copied(h))
		return raise_text(
			-ENOTSUP,
			"the tensor is a copy that get(..., device=) made, whose bytes nobody else has: "
			"get it again, or copy it");
	timeout_ns = h->timeout_ns;
	r = hold_remap(h, mode, &m);
	if (r)
		return PyErr_Occurred() ? NULL : raise_error(r);
	m->flags &= ~DLPACK_FLAG_BITMASK_IS_COPIED; /* `copied` tells of another device */
	other = tensor_from(m);
	if (other)
		((struct array *)other)->hold->timeout_ns = timeout_ns;
	return other;
}

/* _hand_over(client, ttl, often) -> token, for Client._receive() in another process */
static PyObject *tensor_hand_over(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	unsigned char token[TL_TOKEN_SIZE];
	PyObject *client, *ttl;
	int64_t ttl_ns;
	int often, r;

	if (!h || !PyArg_ParseTuple(args, "O!Op", client_base, &client, &ttl, &often) ||
	    parse_ttl(ttl, &ttl_ns) || !client_begin((struct client *)client))
		return NULL;
	hold_ref(h); /* another thread may release the tensor meanwhile */
	Py_BEGIN_ALLOW_THREADS;
	r = tl_handover(((struct client *)client)->client, h->base ? h->base->managed : h->managed,
			ttl_ns, often ? TL_HANDOVER_MANY : 0, token);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	hold_unref_py(h);
	client_end((struct client *)client);
	return r ? NULL : PyBytes_FromStringAndSize((const char *)token, sizeof(token));
}

static PyObject *tensor_unflagged(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct hold *h = array_hold(self);
	PyObject *other;

	(void)unused;
	if (!h)
		return NULL;
	if (!hold_on_gpu(h)) {
		PyErr_SetString(
			PyExc_TypeError,
			"unflagged() is for tensors on GPUs; on the CPU use copy_on_write()");
		return NULL;
	}
	other = tensor_over(hold_ref(h));
	if (other)
		((struct array *)other)->unflagged = true;
	return other;
}

static int tensor_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
	WITH_LOCK;
	return array_get_buffer(self, view, flags);
}

static PyMethodDef methods[] = {
	{ "release", tensor_release, METH_NOARGS,
	  "release($self)\n--\n\n"
	  "Gives the lease back, as the end of the object does. The lease goes on as long as there are views." },
	{ "__enter__", tensor_enter, METH_NOARGS, NULL },
	{ "__exit__", tensor_exit, METH_VARARGS, NULL },
	{ "__dlpack__", FASTCALL(tensor_dlpack), METH_FASTCALL | METH_KEYWORDS,
	  "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
	  "Returns a DLPack capsule.\n\n"
	  "For a read-only Tensor, NumPy gets the shared memory with the READ_ONLY flag. Consumers that may ignore the\n"
	  "flag get a copy-on-write mapping of their own. On a GPU a consumer gets the memory with the flag and a lease\n"
	  "of its own. There stream is a CUDA stream as DLPack numbers them. If another process has not finished the\n"
	  "tensor, the call waits for that, for at most the client's timeout or until Ctrl-C; work of this process is\n"
	  "waited for by the stream. The lease ends when the work that is queued on the stream at the end of the\n"
	  "consumer's tensor is done.\n"
	  "BufferError: the Tensor is read-only and max_version is None; or another device is asked for, or a stream on\n"
	  "the CPU, or a copy on a GPU; or the Tensor was released. TimeoutError: it was not finished in time.\n"
	  "TensorLostError: its memory is lost with its producer." },
	{ "__dlpack_device__", array_dlpack_device, METH_NOARGS,
	  "__dlpack_device__($self)\n--\n\nReturns DLPack's device type and number: (1, 0) is the CPU, (2, n) is GPU n." },
	{ "unflagged", tensor_unflagged, METH_NOARGS,
	  "unflagged($self)\n--\n\n"
	  "Returns a Tensor on a GPU with the same lease, whose DLPack capsules do not have the READ_ONLY flag.\n\n"
	  "It is for libraries that do not know the flag (JAX, TensorFlow). They must not write to it: others read these\n"
	  "bytes, or the memory is mapped read-only, and a write makes CUDA unusable in this process." },
	{ "_cuda_stream", tensor_cuda_stream, METH_NOARGS, NULL },
	{ "_order", tensor_order_now, METH_O, NULL },
	{ "_remap", tensor_remap, METH_O, NULL },
	{ "_hand_over", tensor_hand_over, METH_VARARGS, NULL },
	{ "_share", array_share, METH_NOARGS, NULL },
	{ "_view", array_view, METH_VARARGS, NULL },
	{ 0 },
};

static PyGetSetDef getters[] = {
	{ "shape", array_get_shape, NULL, "The size of each dimension, a tuple of ints.", NULL },
	{ "_dtype_word", array_get_dtype, NULL, NULL, NULL },
	{ "strides", array_get_strides, NULL,
	  "Strides in bytes, a tuple of ints; None for packed types of less than a byte.", NULL },
	{ "nbytes", array_get_nbytes, NULL, "How many bytes the elements take.", NULL },
	{ "ndim", array_get_ndim, NULL, "How many dimensions there are.", NULL },
	{ "size", array_get_size, NULL, "How many elements there are.", NULL },
	{ "itemsize", array_get_itemsize, NULL,
	  "Bytes of an element, an int, or a float for packed types.", NULL },
	{ "device", array_get_device, NULL, "The device, a str such as 'cpu' or 'cuda:0'.", NULL },
	{ "copied", get_copied, NULL,
	  "Whether get(..., device=) made a copy, which nobody else sees.", NULL },
	{ "read_only", array_get_read_only, NULL, "Whether it was got with mode='r'.", NULL },
	{ "released", array_get_released, NULL, "Whether release() was called.", NULL },
	{ "lost", get_lost, NULL,
	  "Whether its GPU memory is lost with the process that published it.", NULL },
	{ "name", get_name, NULL, "The name under which it was published.", NULL },
	{ "version", get_version, NULL, "Its version of that name, from 1.", NULL },
	{ "metadata", get_metadata, NULL, "The bytes that its producer attached.", NULL },
	{ "committed_ns", get_committed_ns, NULL,
	  "When it was published, in nanoseconds since 1970 (time.time_ns()).", NULL },
	{ "uid", get_uid, NULL, "The uid of the user who published it.", NULL },
	{ "_dtype_tuple", array_get_dtype_tuple, NULL, NULL, NULL },
	{ "_address", array_get_address, NULL, NULL, NULL },
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, tensor_refuse_new },
	{ Py_tp_dealloc, tensor_dealloc },
	{ Py_tp_methods, methods },
	{ Py_tp_getset, getters },
	{ Py_bf_getbuffer, tensor_get_buffer },
	{ Py_bf_releasebuffer, array_release_buffer },
	{ 0, NULL },
};

static PyType_Spec spec = {
	.name = "tensorlease._core.Tensor",
	.basicsize = sizeof(struct array),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};

int tensor_init(PyObject *module)
{
	tensor_base = (PyTypeObject *)PyType_FromSpec(&spec);
	if (!tensor_base)
		return -1;
	allocate = (allocfunc)PyType_GetSlot(tensor_base, Py_tp_alloc);
	return dlpack_init(tensor_base) ||
			       PyModule_AddObjectRef(module, "Tensor", (PyObject *)tensor_base)
		       ? -1
		       : 0;
}
