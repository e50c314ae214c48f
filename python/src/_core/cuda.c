/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs. A Tensor is got without naming a stream. A consumer names its stream by
 * __dlpack__(stream=...), and is given a lease of its own for it: that waits until another process
 * has written the tensor, or makes the stream wait for work of this process, and the lease ends
 * when the stream's work is done.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr() */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include <tensorlease/cuda.h>

#include "cuda.h"
#include "lock.h"
#include "wait.h"

int parse_stream(PyObject *o, intptr_t *stream)
{
	PyObject *number;
	long long value;

	*stream = TL_STREAM_DEFAULT;
	if (!o || o == Py_None)
		return 0;
	number = PyLong_Check(o) ? Py_NewRef(o)
				 : PyObject_CallFunctionObjArgs(stream_reader, o, NULL);
	if (!number)
		return -1;
	value = PyLong_AsLongLong(number);
	Py_DECREF(number);
	if (value == -1 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_OverflowError))
			PyErr_Format(PyExc_ValueError, "stream %R is not the address of a stream",
				     o);
		return -1;
	}
	if (value >= TL_STREAM_NONE && value != 0) {
		*stream = (intptr_t)value;
		return 0;
	}
	raise_text(
		-EINVAL,
		"stream %lld: 1 is CUDA's legacy default stream, 2 the per-thread one, -1 none, and "
		"what is above 2 a stream's address; 0 could be either of the first two: give the stream object",
		value);
	return -1;
}

/*
 * PyGILState_Check() would do, but is always true once there was a subinterpreter. Until 3.11 the
 * state that has the GIL is one word for all threads, hence the comparison.
 */
bool gil_is_held(void)
{
	typedef PyThreadState *get_state(void);
	static get_state *_Atomic unchecked; /* outside the stable ABI, but in each version */
	get_state *found = atomic_load(&unchecked);
	PyThreadState *here;

	if (!found) {
		*(void **)&found = dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked"); /* 3.13 */
		if (!found)
			*(void **)&found = dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
		atomic_store(&unchecked, found);
	}
	here = found && Py_IsInitialized() ? PyGILState_GetThisThreadState() : NULL;
	return here && here == found();
}

/* ---- The driver, which a producer of tensors on a GPU has loaded ---- */

enum { GPUS_MAX = 64 };

/* Functions of the driver return 0, or an error. */
static struct {
	int (*get_device)(int *device);
	int (*retain)(void **context, int device);
	int (*push)(void *context);
	int (*pop)(void **context);
	int (*ask_pointer)(void *value, int attribute, uint64_t address);
	int (*finish)(void);
	void *contexts[GPUS_MAX]; /* retained for good */
	bool found;
} driver;

/* The GIL or the extension's lock is held. */
static bool driver_find(void)
{
	void *library = driver.found ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	if (!library)
		return driver.found;
	*(void **)&driver.get_device = dlsym(library, "cuCtxGetDevice");
	*(void **)&driver.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
	*(void **)&driver.push = dlsym(library, "cuCtxPushCurrent_v2");
	*(void **)&driver.pop = dlsym(library, "cuCtxPopCurrent_v2");
	*(void **)&driver.ask_pointer = dlsym(library, "cuPointerGetAttribute");
	*(void **)&driver.finish = dlsym(library, "cuCtxSynchronize");
	driver.found = driver.ask_pointer && driver.get_device && driver.retain && driver.push &&
		       driver.pop && driver.finish;
	return driver.found;
}

struct current_gpu current_gpu_begin(int number)
{
	struct current_gpu was = { .pushed = false };
	int now = -1;

	if (number < 0 || number >= GPUS_MAX || !driver_find())
		return was;
	if (!driver.get_device(&now) && now == number)
		return was;
	if (!driver.contexts[number] && driver.retain(&driver.contexts[number], number))
		driver.contexts[number] = NULL;
	was.pushed = driver.contexts[number] && !driver.push(driver.contexts[number]);
	return was;
}

void current_gpu_end(struct current_gpu was)
{
	void *context;

	if (was.pushed)
		driver.pop(&context);
}

void gpu_finish(int number)
{
	struct current_gpu was = current_gpu_begin(number);

	Py_BEGIN_ALLOW_THREADS;
	if (driver.found)
		driver.finish();
	Py_END_ALLOW_THREADS;
	current_gpu_end(was);
}

int gpu_of_pointer(uint64_t address)
{
	enum { ORDINAL = 9 }; /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
	int number = -1;

	return driver_find() && !driver.ask_pointer(&number, ORDINAL, address) ? number : -1;
}

/* Returns a number for this thread that no other thread of the process ever has. */
static uint64_t this_thread(void)
{
	static _Thread_local uint64_t number;
	static _Atomic uint64_t last;

	if (!number)
		number = atomic_fetch_add(&last, 1) + 1;
	return number;
}

struct stream stream_named(intptr_t number)
{
	return (struct stream){ number, this_thread() };
}

intptr_t stream_here(struct stream stream)
{
	return stream.number == TL_STREAM_PER_THREAD && stream.thread != this_thread()
		       ? TL_STREAM_LEGACY
		       : stream.number;
}

bool stream_add(struct stream *known, intptr_t stream)
{
	if (stream == TL_STREAM_NONE)
		return true;
	if (known->number != TL_STREAM_DEFAULT &&
	    (known->number != stream || stream_here(*known) != stream))
		return false;
	*known = stream_named(stream);
	return true;
}

void hold_used_on(struct hold *h, intptr_t stream)
{
	if (h->drafted && !stream_add(&h->stream, stream))
		h->many_streams = true;
}

int parse_target(PyObject *o, tl_get_options *options)
{
	PyObject *pair;
	int type, number, r;

	if (!o || o == Py_None)
		return 0;
	pair = PyObject_CallFunctionObjArgs(device_reader, o, NULL);
	if (!pair)
		return -1;
	r = PyArg_ParseTuple(pair, "ii", &type, &number) ? 0 : -1;
	Py_DECREF(pair);
	if (r)
		return -1;
	options->flags |= TL_GET_DEVICE;
	options->device = (DLDevice){ (DLDeviceType)type, number };
	return 0;
}

PyObject *stream_number(intptr_t stream)
{
	if (stream == TL_STREAM_DEFAULT)
		Py_RETURN_NONE;
	return PyLong_FromSsize_t(stream);
}

bool hold_usable(const struct hold *h)
{
	if (!h->pid || h->pid == getpid())
		return true;
	PyErr_SetString(
		PyExc_BufferError,
		"CUDA does not work in a process that was forked after its parent used it, such as a "
		"DataLoader's worker: start it with the method 'spawn', and get the tensor there");
	return false;
}

bool hold_is_ours(const struct hold *h)
{
	return tl_tensor_check(h->managed) != -EINVAL;
}

/* Waits in slices, which no signal and no close() ends. */
static int lease_by(const struct hold *h, intptr_t stream, const struct client *c, int64_t end,
		    DLManagedTensorVersioned **out)
{
	for (;;) {
		int64_t left = wait_left(end), slice = left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
		int r;

		Py_BEGIN_ALLOW_THREADS;
		r = tl_remap_stream(h->managed, stream, slice ? slice : 1, out);
		Py_END_ALLOW_THREADS;
		if (!r)
			return 0;
		if (r != -ETIMEDOUT || slice == left) {
			raise_error(r);
			return r;
		}
		if (c && c->closing) {
			wait_closed("a get");
			return -ECANCELED;
		}
		if (PyErr_CheckSignals())
			return -EINTR;
	}
}

int hold_lease(struct hold *h, intptr_t stream, const struct client *c, int64_t end,
	       DLManagedTensorVersioned **out)
{
	int r;

	hold_ref(h); /* because another thread may release the tensor meanwhile */
	r = lease_by(h, stream, c, end, out);
	hold_unref_py(h);
	return r;
}

int tensor_order(PyObject *self, intptr_t stream, PyObject *owner, const struct client *c,
		 int64_t end)
{
	struct array *a = (struct array *)self;
	struct hold *h = array_hold(self), *ordered;
	DLManagedTensorVersioned *m;
	int r;

	if (!h)
		return -EINVAL;
	if (!hold_on_gpu(h) || stream == TL_STREAM_DEFAULT)
		return 0;
	if (stream == TL_STREAM_NONE) {
		h->stream = stream_named(stream);
		return 0;
	}
	r = hold_lease(h, stream, c, end, &m);
	if (r)
		return r;
	ordered = hold_new(m);
	if (!ordered)
		return -ENOMEM;
	ordered->stream = stream_named(stream);
	ordered->stream_owner = Py_XNewRef(owner);
	h = a->hold; /* NULL: another thread has released it meanwhile */
	if (h) {
		ordered->timeout_ns = h->timeout_ns;
		a->hold = ordered;
		hold_unref_py(h);
		return 0;
	}
	hold_unref_py(ordered);
	raise_ended(self, PyExc_ValueError);
	return -EINVAL;
}

PyObject *tensor_order_now(PyObject *self, PyObject *stream)
{
	WITH_LOCK;
	intptr_t number;

	if (parse_stream(stream, &number) || tensor_order(self, number, stream, NULL, 0))
		return NULL;
	Py_RETURN_NONE;
}

PyObject *check_stream(PyObject *module, PyObject *stream)
{
	intptr_t number;

	(void)module;
	if (parse_stream(stream, &number))
		return NULL;
	Py_RETURN_NONE;
}

PyObject *tensor_cuda_stream(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct array *a = (struct array *)self;
	struct hold *h = array_hold(self), *lease;
	DLManagedTensorVersioned *m;

	(void)unused;
	if (!h || !hold_usable(h))
		return NULL;
	if (h->stream.number == TL_STREAM_NONE)
		Py_RETURN_NONE;
	/* What is queued on the legacy stream needs a lease of its own. */
	if (h->stream.number != TL_STREAM_DEFAULT && stream_here(h->stream) == h->stream.number)
		return PyLong_FromSsize_t(h->stream.number);
	/* The maker or the user of a tensor that is not the library's ensures the order. */
	if (!a->lasting && hold_is_ours(h)) {
		if (hold_lease(h, TL_STREAM_LEGACY, NULL, wait_end(h->timeout_ns), &m))
			return NULL;
		lease = hold_new(m);
		if (!lease)
			return NULL;
		if (a->lasting) /* another thread was faster */
			hold_unref_py(lease);
		else
			a->lasting = lease;
	}
	return PyLong_FromLong(TL_STREAM_LEGACY);
}

PyObject *uuid_text(const char *prefix, const unsigned char uuid[16])
{
	char text[48];
	int n = PyOS_snprintf(text, sizeof(text), "%s", prefix);

	for (int i = 0; i < 16; i++)
		n += PyOS_snprintf(text + n, sizeof(text) - (size_t)n, "%s%02x",
				   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	return PyUnicode_FromString(text);
}

static PyObject *device_tuple(int number, const tl_cuda_info *i)
{
	const char *prefix = strstr(i->name, "MIG") ? "MIG-" : "GPU-";

	return Py_BuildValue("(isNK(ii)iNNNN)", number, i->name, uuid_text(prefix, i->uuid),
			     (unsigned long long)i->total_bytes, (int)i->compute_major,
			     (int)i->compute_minor, (int)i->driver_version, PyBool_FromLong(i->vmm),
			     PyBool_FromLong(i->legacy_ipc), PyBool_FromLong(i->memory_pools),
			     PyBool_FromLong(i->integrated));
}

PyObject *cuda_devices(PyObject *module, PyObject *unused)
{
	tl_cuda_info info = { .size = sizeof(info), .count = 1 };
	PyObject *list = PyList_New(0);

	(void)module;
	(void)unused;
	for (int i = 0; list && i < info.count; i++) {
		PyObject *item;
		int r;

		Py_BEGIN_ALLOW_THREADS;
		r = tl_get_cuda_info(i, &info);
		Py_END_ALLOW_THREADS;
		item = r ? raise_error(r) : device_tuple(i, &info);
		if (!item || PyList_Append(list, item))
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}

PyObject *cuda_alloc(PyObject *module, PyObject *args)
{
	PyObject *allocated, *address;
	Py_ssize_t size;
	int device, r;
	void *memory;

	(void)module;
	if (!PyArg_ParseTuple(args, "niO!", &size, &device, &PySet_Type, &allocated))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	memory = tl_cuda_alloc((size_t)size, device, NULL);
	r = -errno;
	Py_END_ALLOW_THREADS;
	if (!memory)
		return raise_error(r);
	/* A signal that came meanwhile may raise, and nobody would ever get the address. */
	address = PyErr_CheckSignals() ? NULL : PyLong_FromVoidPtr(memory);
	if (address && !PySet_Add(allocated, address))
		return address;
	Py_XDECREF(address);
	Py_BEGIN_ALLOW_THREADS;
	tl_cuda_free(memory, 0, 0, (void *)TL_STREAM_NONE);
	Py_END_ALLOW_THREADS;
	return NULL;
}

PyObject *cuda_free(PyObject *module, PyObject *args)
{
	PyObject *address, *allocated, *o;
	intptr_t stream;
	void *memory;
	int known;

	(void)module;
	if (!PyArg_ParseTuple(args, "OO!O", &address, &PySet_Type, &allocated, &o) ||
	    parse_stream(o, &stream))
		return NULL;
	known = PySet_Discard(allocated, address); /* before the address may come back */
	if (known < 0)
		return NULL;
	if (!known)
		return PyErr_Format(PyExc_ValueError,
				    "%R is not the address of memory of cuda_alloc()", address);
	memory = PyLong_AsVoidPtr(address);
	Py_BEGIN_ALLOW_THREADS;
	tl_cuda_free(memory, 0, 0, (void *)stream);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

PyObject *library_path(PyObject *module, PyObject *unused)
{
	Dl_info info;

	(void)module;
	(void)unused;
	if (!dladdr((void *)(uintptr_t)tl_cuda_alloc, &info))
		Py_RETURN_NONE;
	return PyUnicode_DecodeFSDefault(info.dli_fname);
}
