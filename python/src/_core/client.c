/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Client. A client of the library must not be closed while a call uses it. So calls are counted
 * under the GIL. close() wakes those that wait, and the last call to end does the closing.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda.h"
#include "draft.h"
#include "file.h"
#include "look.h"
#include "many.h"
#include "wait.h"

PyTypeObject *client_base;

/* ---- Life ---- */

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "address", "autostart", "timeout", NULL };
	tl_connect_options options = { .size = sizeof(options) };
	PyObject *address = Py_None, *path = NULL, *timeout = NULL;
	int autostart = 1, r;
	tl_client *client;
	struct client *self;
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OpO", names, &address, &autostart,
					 &timeout) ||
	    parse_seconds("timeout", timeout, &options.timeout_ns))
		return NULL;
	if (address != Py_None) {
		path = parse_path("address", address);
		if (!path)
			return NULL;
		options.address = PyBytes_AsString(path);
	}
	options.flags = autostart ? TL_CONNECT_AUTOSTART : 0;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_connect(&options, &client);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_connect_error(r);
	Py_XDECREF(path);
	if (r)
		return NULL;
	self = (struct client *)allocate(type, 0);
	if (!self) {
		tl_close(client);
		return NULL;
	}
	self->client = client;
	return (PyObject *)self;
}

bool client_begin(struct client *c)
{
	if (!c->client || c->closing) {
		PyErr_SetString(PyExc_ValueError, "the client is closed");
		return false;
	}
	c->calls++;
	return true;
}

/* Gives the GIL up: this may wait for the GPU, and for deleters that need the GIL. */
static int close_now(struct client *c)
{
	tl_client *client = c->client;
	int r;

	c->client = NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_close(client);
	Py_END_ALLOW_THREADS;
	return r;
}

/*
 * Closes where no caller could get an exception; sys.unraisablehook gets it instead. An exception
 * that is already set stays.
 */
static void close_aside(struct client *c)
{
	PyObject *type, *value, *traceback;
	int r = close_now(c);

	if (!r)
		return;
	PyErr_Fetch(&type, &value, &traceback);
	raise_error(r);
	PyErr_WriteUnraisable((PyObject *)Py_TYPE(c)); /* the client itself may be going away */
	PyErr_Restore(type, value, traceback);
}

void client_end(struct client *c)
{
	if (--c->calls == 0 && c->closing && c->client)
		close_aside(c);
}

static void wake(uint32_t *word)
{
	__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static PyObject *client_close(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;
	int r;

	(void)unused;
	c->closing = true;
	wake(&c->over);
	wake(&c->rescan);
	r = c->client && !c->calls ? close_now(c) : 0;
	if (r)
		return raise_error(r);
	Py_RETURN_NONE;
}

static void client_dealloc(PyObject *self)
{
	struct client *c = (struct client *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);

	if (c->client) /* no call is under way, since each has a reference */
		close_aside(c);
	end(self);
	Py_DECREF(type);
}

/* ---- Getting ---- */

struct getting {
	tl_client *client;
	const char *name;
	tl_get_options options;
	int64_t timeout_ns, spin_ns; /* options has only a slice of them */
	/* options.stream is TL_STREAM_NONE: a stream may need the driver, which must run without the GIL. */
	intptr_t stream;
	DLManagedTensorVersioned *tensor;
	struct wait wait;
};

static int get_look(void *context)
{
	struct getting *g = context;
	int r = tl_get(g->client, g->name, &g->options, &g->tensor);
	tl_info info = { .size = sizeof(info) };

	/*
	 * For a caller who waits, a lost tensor counts as old: only a newer version ends the wait.
	 */
	if (r == -ENODATA && !tl_stat(g->client, g->name, &info) && info.lost)
		g->wait.item.newer_than = info.version;
	return r;
}

static int get_timed_out(const struct getting *g)
{
	long long ms = (long long)(g->timeout_ns / 1000000);

	if (g->options.newer_than)
		raise_text(-ETIMEDOUT, "no version of '%s' above %llu came within %lld ms", g->name,
			   (unsigned long long)g->options.newer_than, ms);
	else
		raise_text(-ETIMEDOUT, "no tensor '%s' came within %lld ms", g->name, ms);
	return -1;
}

/* Returns 0, 1 if it did not come or there is no spinning, or -1 with an exception. */
static int get_spin(struct client *c, struct getting *g, int64_t end)
{
	int64_t spun = wait_end(g->spin_ns),
		left = g->spin_ns ? wait_left(spun < end ? spun : end) : 0;
	int r = -ETIMEDOUT;

	while (left > 0 && (r == -ETIMEDOUT || r == -EINTR)) {
		g->options.timeout_ns = g->options.spin_ns = left < WAIT_SLICE_NS ? left
										  : WAIT_SLICE_NS;
		Py_BEGIN_ALLOW_THREADS;
		r = get_look(g);
		Py_END_ALLOW_THREADS;
		g->options.timeout_ns = g->options.spin_ns = 0;
		if (!r)
			return 0;
		if (c->closing)
			return wait_closed("a get");
		if (PyErr_CheckSignals())
			return -1;
		left = wait_left(spun < end ? spun : end);
	}
	return 1;
}

static int get_wait(struct client *c, struct getting *g)
{
	int64_t end = wait_end(g->timeout_ns);
	int r = get_spin(c, g, end);

	if (r > 0)
		r = client_wait(c, &g->wait, end == INT64_MAX ? -1 : wait_left(end));
	if (r <= 0)
		return r;
	r = get_look(g);
	if (r != -ENODATA)
		return r ? get_timed_out(g) : 0;
	raise_error(r);
	return -1;
}

/*
 * Keeps the GIL, since this makes no request: a thread that gives the GIL up may have to wait 5 ms
 * for another thread to give it back.
 */
static int get_local(struct getting *g)
{
	int r;

	if (g->options.mode != TL_MODE_READ)
		return -EAGAIN;
	g->options.flags = TL_GET_LOCAL;
	r = get_look(g);
	g->options.flags = 0;
	return r;
}

static int get_now(struct getting *g)
{
	int r = get_local(g);

	if (!r)
		return 0;
	Py_BEGIN_ALLOW_THREADS;
	r = get_look(g);
	Py_END_ALLOW_THREADS;
	return r;
}

/* Makes the Tensor, and orders the stream that the user named. */
static PyObject *tensor_on(DLManagedTensorVersioned *tensor, intptr_t stream)
{
	PyObject *self = tensor_from(tensor);
	struct hold *h = self ? ((struct array *)self)->hold : NULL, *ordered;
	DLManagedTensorVersioned *m;
	int r;

	if (!h || !hold_on_gpu(h) || stream == TL_STREAM_DEFAULT)
		return self;
	if (stream == TL_STREAM_NONE) {
		h->stream = stream;
		return self;
	}
	r = hold_lease(h, stream, &m);
	ordered = r ? NULL : hold_new(m);
	if (r)
		raise_error(r);
	if (!ordered) {
		Py_DECREF(self);
		return NULL;
	}
	ordered->stream = stream;
	((struct array *)self)->hold = ordered;
	hold_unref_py(h);
	return self;
}

static PyObject *client_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *names)
{
	PyObject *name = NULL, *timeout = NULL, *newer = NULL, *mode = NULL, *spin = NULL,
		 *stream = NULL;
	const struct keyword keywords[] = {
		{ "name", &name }, { "timeout", &timeout }, { "newer_than", &newer },
		{ "mode", &mode }, { "spin", &spin },	    { "stream", &stream },
		{ NULL, NULL }
	};
	struct client *c = (struct client *)self;
	struct getting g = { .options = { .size = sizeof(g.options), .stream = TL_STREAM_NONE } };
	int r;

	if (parse_arguments("get", args, nargs, names, 1, keywords))
		return NULL;
	g.name = name_utf8(name);
	if (!g.name || parse_seconds("timeout", timeout, &g.timeout_ns) ||
	    parse_mode(mode, &g.options.mode) || parse_seconds("spin", spin, &g.spin_ns) ||
	    parse_stream(stream, &g.stream) ||
	    parse_uint64("newer_than", newer == Py_None ? NULL : newer, &g.options.newer_than))
		return NULL;
	if (!client_begin(c))
		return NULL;
	g.client = c->client;
	g.wait = (struct wait){ .item = { .name = g.name, .newer_than = g.options.newer_than },
				.look = get_look,
				.context = &g };
	r = get_now(&g);
	if (r && g.timeout_ns && (worth_waiting(r) || r == -ENODATA))
		r = get_wait(c, &g);
	else if (r)
		raise_error(r);
	client_end(c);
	return r ? NULL : tensor_on(g.tensor, g.stream);
}

/* ---- Waiting for many, for the thread behind aget() ---- */

/* Converts [(name, newer_than), ...]; @names keeps the texts alive. */
static tl_wait_item *wait_items(PyObject *list, Py_ssize_t *count)
{
	tl_wait_item *items;

	*count = PyTuple_Size(list);
	if (*count < 0)
		return NULL;
	items = PyMem_Calloc((size_t)(*count ? *count : 1), sizeof(*items));
	for (Py_ssize_t i = 0; items && i < *count; i++) {
		PyObject *pair = PyTuple_GetItem(list, i);
		PyObject *name = PyTuple_GetItem(pair, 0), *newer = PyTuple_GetItem(pair, 1);

		if (!name || !newer || !(items[i].name = name_utf8(name)))
			break;
		items[i].newer_than = PyLong_AsUnsignedLongLong(newer);
	}
	if (!items)
		PyErr_NoMemory();
	else if (!PyErr_Occurred())
		return items;
	PyMem_Free(items);
	return NULL;
}

/*
 * _wait_many(items: tuple, word: int, timeout) -> index, or None: the word changed, a signal came,
 * or the time is up
 */
static PyObject *client_wait_many(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *list, *timeout;
	tl_wait_item *items;
	unsigned int word;
	Py_ssize_t count;
	size_t which = 0;
	int64_t ns;
	int r;

	if (!PyArg_ParseTuple(args, "O!IO", &PyTuple_Type, &list, &word, &timeout) ||
	    parse_seconds("timeout", timeout, &ns) || !client_begin(c))
		return NULL;
	items = wait_items(list, &count);
	if (!items) {
		client_end(c);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS;
	r = tl_wait_many(c->client, items, (size_t)count, &c->rescan, word, ns, &which);
	Py_END_ALLOW_THREADS;
	PyMem_Free(items);
	if (r && r != -ECANCELED && r != -EINTR && r != -ETIMEDOUT)
		raise_error(r);
	client_end(c);
	if (!r)
		return PyLong_FromSize_t(which);
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *client_wake(PyObject *self, PyObject *unused)
{
	(void)unused;
	wake(&((struct client *)self)->rescan);
	Py_RETURN_NONE;
}

static PyObject *client_wake_word(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLong(
		__atomic_load_n(&((struct client *)self)->rescan, __ATOMIC_SEQ_CST));
}

/* ---- Publishing ---- */

struct putting {
	PyObject *called; /* a str */
	const char *name; /* its text */
	PyObject *array;
	tl_put_options options;
	int64_t timeout_ns; /* options.timeout_ns holds only a slice of it */
	Py_buffer metadata;
	int waits;
	/* the arguments of the call: */
	tl_client *client;
	const struct source *source;
	DLManagedTensorVersioned *tensor;
	uint64_t version;
	bool copied;
};

static int parse_flag(PyObject *o, uint32_t flag, uint32_t *flags)
{
	int truth = o ? PyObject_IsTrue(o) : 0;

	if (truth > 0)
		*flags |= flag;
	return truth < 0 ? -1 : 0;
}

static int parse_putting(bool publish, struct putting *p, PyObject *const *args, Py_ssize_t nargs,
			 PyObject *names)
{
	PyObject *metadata = NULL, *timeout = NULL, *wait = NULL, *stream = NULL;
	PyObject *sealed = NULL, *staging = NULL, *no_copy = NULL;
	const struct keyword keywords[] = {
		{ "name", &p->called },
		{ publish ? "tensor" : "array", &p->array },
		{ "metadata", &metadata },
		{ "timeout", &timeout },
		{ "wait", &wait },
		{ "stream", &stream },
		{ publish ? "sealed" : NULL, &sealed },
		{ "staging", &staging },
		{ "no_copy", &no_copy },
		{ NULL, NULL },
	};

	memset(p, 0, sizeof(*p));
	p->options.size = sizeof(p->options);
	p->waits = 1;
	if (parse_arguments(publish ? "publish" : "put", args, nargs, names, 2, keywords))
		return -1;
	p->name = name_utf8(p->called);
	if (!p->name || parse_seconds("timeout", timeout, &p->timeout_ns) ||
	    parse_stream(stream, &p->options.stream) ||
	    parse_flag(sealed, TL_PUBLISH_SEALED, &p->options.flags) ||
	    parse_flag(staging, TL_PUBLISH_STAGING, &p->options.flags) ||
	    parse_flag(no_copy, TL_PUBLISH_NO_COPY, &p->options.flags))
		return -1;
	if (wait && (p->waits = PyObject_IsTrue(wait)) < 0)
		return -1;
	if (parse_metadata(metadata, &p->metadata))
		return -1;
	p->options.metadata = p->metadata.len ? p->metadata.buf : NULL;
	p->options.metadata_size = (size_t)p->metadata.len;
	return 0;
}

/*
 * A copy on a GPU is queued on a stream. A caller who names no stream could not know when the copy
 * is made, so the call must not return before it is.
 */
static void copy_options(tl_put_options *o, const struct source *s)
{
	if (source_on_gpu(s) && o->stream == TL_STREAM_DEFAULT)
		o->flags |= TL_PUBLISH_SEALED;
	o->stream = s->stream;
}

static int put_attempt(void *context, int64_t timeout_ns)
{
	struct putting *p = context;

	p->options.timeout_ns = timeout_ns;
	return tl_put(p->client, p->name, &p->source->tensor, &p->options,
		      p->waits ? &p->version : NULL);
}

static PyObject *client_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *names)
{
	struct client *c = (struct client *)self;
	struct putting p;
	struct source s;
	int r = -1;

	if (parse_putting(false, &p, args, nargs, names))
		return NULL;
	if (source_begin(&s, p.array, &p.options.stream)) {
		PyBuffer_Release(&p.metadata);
		return NULL;
	}
	if (client_begin(c)) {
		p.options.dlpack_flags = s.flags;
		copy_options(&p.options, &s);
		p.client = c->client;
		p.source = &s;
		r = client_with_space(c, put_attempt, &p, p.timeout_ns);
		if (r < 0)
			raise_error(r);
		client_end(c);
	}
	source_end(&s);
	PyBuffer_Release(&p.metadata);
	if (r)
		return NULL;
	if (!p.waits)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(p.version);
}

/*
 * If the source is a read-only Tensor, returns another lease on it, by which the library recognises
 * it, else NULL.
 */
static DLManagedTensorVersioned *publishable(const struct source *s)
{
	DLManagedTensorVersioned *again;

	if (!s->hold || !hold_read_only(s->hold) ||
	    tl_remap(s->hold->managed, TL_MODE_READ, &again))
		return NULL;
	return again;
}

static int publish_attempt(void *context, int64_t timeout_ns)
{
	struct putting *p = context;

	p->options.timeout_ns = timeout_ns;
	return tl_publish(p->client, p->name, p->tensor, &p->options, &p->copied,
			  p->waits ? &p->version : NULL);
}

static int publish_source(struct client *c, struct putting *p, struct source *s)
{
	DLManagedTensorVersioned same = {
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.flags = s->flags,
		.dl_tensor = s->tensor, /* source_end() calls its owner's deleter */
	};
	DLManagedTensorVersioned *again;
	int r;

	if (!client_begin(c))
		return -1;
	Py_BEGIN_ALLOW_THREADS;
	again = publishable(s);
	Py_END_ALLOW_THREADS;
	p->client = c->client;
	p->tensor = again ? again : &same;
	r = client_with_space(c, publish_attempt, p, p->timeout_ns);
	if (r < 0)
		raise_error(r);
	if (r && again)
		again->deleter(again);
	client_end(c);
	return r ? -1 : 0;
}

/* The library then owns the source, and calls its deleter when nobody holds what was published. */
static int publish_gpu(struct client *c, struct putting *p, struct source *s)
{
	struct draft *draft = draft_with_bytes_at(c, s->tensor.data);
	int r;

	if (source_own(s) || !client_begin(c))
		return -1;
	if (p->options.flags & TL_PUBLISH_STAGING) /* then it may be copied */
		copy_options(&p->options, s);
	p->options.stream = s->stream;
	if (draft)
		draft_say_stream(draft, s->stream);
	p->client = c->client;
	p->tensor = s->versioned;
	Py_BEGIN_ALLOW_THREADS;
	r = publish_attempt(p, p->timeout_ns);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	if (!r || r == -EINPROGRESS) /* it may be published, and the library keeps it */
		s->versioned = NULL;
	client_end(c);
	return r ? -1 : 0;
}

/* publish(name, tensor, ...) -> (version, copied) */
static PyObject *client_publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				PyObject *names)
{
	struct client *c = (struct client *)self;
	struct draft *draft = NULL;
	struct putting p;
	struct source s;
	int r;

	if (parse_putting(true, &p, args, nargs, names))
		return NULL;
	if (is_draft(p.array)) {
		p.options.timeout_ns = p.timeout_ns;
		r = draft_publish((struct draft *)p.array, p.called, &p.options,
				  p.waits ? &p.version : NULL, &p.copied);
	} else {
		r = source_begin(&s, p.array, &p.options.stream);
		if (!r) {
			const void *data = s.tensor.data;

			r = source_on_gpu(&s) ? publish_gpu(c, &p, &s) : publish_source(c, &p, &s);
			if (!r && !p.copied)
				draft = draft_with_bytes_at(c, data);
			if (draft)
				draft_committed(draft, p.called, p.version);
			source_end(&s);
		}
	}
	PyBuffer_Release(&p.metadata);
	if (r)
		return NULL;
	if (!p.waits)
		return Py_BuildValue("OO", Py_None, p.copied ? Py_True : Py_False);
	return Py_BuildValue("KO", (unsigned long long)p.version, p.copied ? Py_True : Py_False);
}

struct creating {
	tl_client *client;
	const char *name;
	tl_spec spec;
	const Py_buffer *metadata;
	tl_draft *draft;
};

static int create_attempt(void *context, int64_t timeout_ns)
{
	struct creating *w = context;
	int r;

	w->spec.timeout_ns = timeout_ns;
	r = tl_create(w->client, w->name, &w->spec, &w->draft);
	if (r || !w->metadata->len)
		return r;
	return tl_draft_set_metadata(w->draft, w->metadata->buf, (size_t)w->metadata->len);
}

/* _create(name, shape, (code, bits, lanes), flags, metadata, timeout, GPU or -1) -> Draft */
static PyObject *client_create(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *name, *shape, *metadata, *timeout;
	int64_t sizes[TL_NDIM_MAX], timeout_ns;
	struct creating w = { .spec = { .size = sizeof(w.spec), .shape = sizes } };
	int code, bits, lanes, gpu, r;
	Py_buffer bytes;

	if (!PyArg_ParseTuple(args, "OO!(iii)KOOi", &name, &PyTuple_Type, &shape, &code, &bits,
			      &lanes, &w.spec.dlpack_flags, &metadata, &timeout, &gpu))
		return NULL;
	w.name = name_utf8(name);
	if (!w.name || parse_seconds("timeout", timeout, &timeout_ns))
		return NULL;
	if (PyTuple_Size(shape) > TL_NDIM_MAX)
		return raise_text(-EINVAL, "shape: %zd dimensions; the limit is %d",
				  PyTuple_Size(shape), TL_NDIM_MAX);
	w.spec.ndim = (int32_t)PyTuple_Size(shape);
	for (int i = 0; i < w.spec.ndim; i++) {
		sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
		if (sizes[i] == -1 && PyErr_Occurred())
			return NULL;
	}
	w.spec.dtype = (DLDataType){ (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
	if (gpu >= 0)
		w.spec.device = (DLDevice){ kDLCUDA, gpu };
	if (parse_metadata(metadata, &bytes))
		return NULL;
	if (!client_begin(c)) {
		PyBuffer_Release(&bytes);
		return NULL;
	}
	w.client = c->client;
	w.metadata = &bytes;
	r = client_with_space(c, create_attempt, &w, timeout_ns);
	if (r < 0)
		raise_error(r);
	if (r)
		tl_abort(w.draft);
	client_end(c);
	PyBuffer_Release(&bytes);
	return r ? NULL : draft_from(c, name, w.draft);
}

static PyObject *client_delete(PyObject *self, PyObject *name)
{
	struct client *c = (struct client *)self;
	const char *text = name_utf8(name);
	int r;

	if (!text || !client_begin(c))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_delete(c->client, text);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	client_end(c);
	if (r)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
	struct client *c = (struct client *)self;

	(void)unused;
	return PyBool_FromLong(!c->client || c->closing);
}

static const char get_doc[] =
	"get($self, name, *, timeout=None, newer_than=None, mode='r', spin=None, stream=None)\n--\n\n"
	"Takes a lease on the tensor that name means now, and returns it as a Tensor over the same memory.\n\n"
	"timeout: seconds to wait for the name, or for a newer version. None: do not wait. inf: wait forever.\n"
	"newer_than: a version; only a version above it is returned.\n"
	"mode: 'r' for read-only, or 'c' for copy-on-write: writable, but nobody else sees what is written.\n"
	"spin: seconds of the timeout to spin before sleeping. This is the fastest way to see a commit.\n"
	"stream: the stream that will use the memory of a tensor on a GPU. It waits for the producer's work, and the\n"
	"    lease ends when the work on it is done. -1: no order. Consumers by DLPack, such as torch() and\n"
	"    cupy.from_dlpack(), name their stream themselves. So it is only needed for the tensor's address and\n"
	"    for __cuda_array_interface__.\n"
	"NotFoundError (a FileNotFoundError): no tensor has that name. NotNewerError (a BlockingIOError): there is no\n"
	"newer version. TimeoutError: none came in time. DisconnectedError: the daemon is gone. TensorLostError: the\n"
	"GPU memory is gone with its producer. NoDeviceError: CUDA or that GPU cannot be used here.";

static const char put_doc[] =
	"put($self, name, array, *, metadata=None, timeout=None, wait=True, stream=None)\n--\n\n"
	"Publishes a copy of array under name and returns its version, an int from 1.\n\n"
	"array: an object in main memory with __dlpack__, the buffer protocol or __array_interface__, of any strides:\n"
	"    NumPy, PyTorch, JAX, bytes, array.array, ... Or a contiguous object on a GPU with __dlpack__ or\n"
	"    __cuda_array_interface__; its copy lies on the same GPU.\n"
	"metadata: bytes to attach, at most 1024.\n"
	"timeout: seconds to wait for space. None: do not wait.\n"
	"wait: if False, do not wait for the daemon's answer, and return None. If the daemon refuses, the next\n"
	"    create(), put() or commit() raises the error.\n"
	"stream: on a GPU, the stream on which the copy is queued: an int as DLPack numbers streams, or a stream object\n"
	"    of another library. Queue the next write to array there too. None: put() returns when the copy is made.\n"
	"NoSpaceError: it does not fit. PermissionDeniedError: the name belongs to another user. BufferError: DLPack\n"
	"has no type for the elements. UnsupportedError: the array is on another device, or strided on a GPU.\n"
	"NoDeviceError: CUDA cannot be used here. TypeError: it is not an array.";

static const char delete_doc[] =
	"delete($self, name, /)\n--\n\n"
	"Deletes name. Holders of its tensor keep it. NotFoundError: no tensor has that name.";

static PyMethodDef methods[] = {
	{ "get", FASTCALL(client_get), METH_FASTCALL | METH_KEYWORDS, get_doc },
	{ "put", FASTCALL(client_put), METH_FASTCALL | METH_KEYWORDS, put_doc },
	{ "_publish", FASTCALL(client_publish), METH_FASTCALL | METH_KEYWORDS, NULL },
	{ "_create", client_create, METH_VARARGS, NULL },
	{ "delete", client_delete, METH_O, delete_doc },
	{ "_put_many", many_put, METH_VARARGS, NULL },
	{ "_get_many", many_get, METH_VARARGS, NULL },
	{ "_get_all", many_get_all, METH_VARARGS, NULL },
	{ "_load", file_load, METH_VARARGS, NULL },
	{ "_save", file_save, METH_VARARGS, NULL },
	{ "_stat", look_stat, METH_O, NULL },
	{ "_list", look_list, METH_O, NULL },
	{ "_status", look_status, METH_NOARGS, NULL },
	{ "_devices", look_devices, METH_NOARGS, NULL },
	{ "_clients", look_clients, METH_NOARGS, NULL },
	{ "_holdings", look_holdings, METH_O, NULL },
	{ "_wait_many", client_wait_many, METH_VARARGS, NULL },
	{ "_wake", client_wake, METH_NOARGS, NULL },
	{ "_wake_word", client_wake_word, METH_NOARGS, NULL },
	{ "_close", client_close, METH_NOARGS, NULL },
	{ 0 },
};

static PyGetSetDef getters[] = {
	{ "closed", get_closed, NULL, "Whether close() was called.", NULL },
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, client_new }, { Py_tp_dealloc, client_dealloc }, { Py_tp_methods, methods },
	{ Py_tp_getset, getters }, { Py_sq_contains, look_contains }, { 0, NULL },
};

static PyType_Spec spec = {
	.name = "tensorlease._core.Client",
	.basicsize = sizeof(struct client),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};

int client_init(PyObject *module)
{
	client_base = (PyTypeObject *)PyType_FromSpec(&spec);
	return client_base && !PyModule_AddObjectRef(module, "Client", (PyObject *)client_base)
		       ? 0
		       : -1;
}
