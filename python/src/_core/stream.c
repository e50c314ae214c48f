/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, subscriptions and items. A handle has a reference to its client. A call on it counts as
 * a call of the client, so that close() of the client waits for its end and interrupts its wait. If
 * the handle is closed while calls are under way, the last of them closes it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tensorlease/stream.h>

#include "client.h"
#include "cuda.h"
#include "draft.h"
#include "item.h"
#include "lock.h"
#include "source.h"
#include "wait.h"

/* A stream or a subscription. */
struct handle {
	PyObject_HEAD struct client *client;
	union {
		tl_stream *stream;
		tl_subscription *subscription;
		void *any; /* NULL: closed */
	};
	struct calls calls;
	bool closing;
};

static PyTypeObject *stream_type, *subscription_type, *item_draft_type;

/* ---- handles --------------------------------------------------------------------------------- */

static PyObject *new_object(PyTypeObject *type)
{
	return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void close_now(struct handle *h)
{
	void *any = h->any;
	bool stream = Py_TYPE((PyObject *)h) == stream_type;

	h->any = NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (stream)
		tl_stream_close(any);
	else
		tl_subscription_close(any);
	Py_END_ALLOW_THREADS;
}

static bool handle_begin(struct handle *h)
{
	if (h->closing) {
		PyErr_SetString(PyExc_ValueError, Py_TYPE((PyObject *)h) == stream_type
							  ? "the stream is closed"
							  : "the subscription is closed");
		return false;
	}
	if (!client_begin(h->client))
		return false;
	calls_begin(&h->calls);
	return true;
}

static void handle_end(struct handle *h)
{
	if (calls_end(&h->calls) && h->closing && h->any)
		close_now(h);
	client_end(h->client);
}

static PyObject *handle_close(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;

	(void)unused;
	h->closing = true;
	if (h->any && !calls_any(&h->calls))
		close_now(h);
	Py_RETURN_NONE;
}

static void handle_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self); /* before it waits for the lock: a collection must not find it */
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);

	if (h->any)
		close_now(h);
	Py_XDECREF((PyObject *)h->client);
	end(self);
	Py_DECREF(type);
}

static int handle_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct handle *)self)->client);
	return 0;
}

/* What goes on after a slice of a wait: 0, or -1 with an exception. */
static int slice_over(const struct handle *h, int r)
{
	if (h->client->closing || h->closing) {
		PyErr_SetString(PyExc_ValueError, h->closing ? "it was closed meanwhile"
							     : "the client was closed meanwhile");
		return -1;
	}
	if (r != -EAGAIN && r != -ETIMEDOUT && r != -EINTR && r != -ECANCELED) {
		raise_error(r);
		return -1;
	}
	return PyErr_CheckSignals();
}

/* ---- streams --------------------------------------------------------------------------------- */

PyObject *client_stream(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	tl_stream_options o = { .size = sizeof(o) };
	tl_stream *opened = NULL;
	PyObject *name_object, *ttl, *owner_bound;
	unsigned long long max_bytes;
	struct handle *h;
	const char *name;
	int r;

	if (!PyArg_ParseTuple(args, "OIIIIIOOK", &name_object, &o.mode, &o.depth, &o.keep,
			      &o.max_tries, &o.flags, &ttl, &owner_bound, &max_bytes) ||
	    parse_lifetime(ttl, owner_bound, NULL, &o.ttl_ns, &o.lifetime))
		return NULL;
	o.max_bytes = max_bytes;
	name = name_utf8(name_object);
	if (!name || !client_begin(c))
		return NULL;
	h = (struct handle *)new_object(stream_type);
	if (h) {
		h->client = (struct client *)Py_NewRef(self);
		Py_BEGIN_ALLOW_THREADS;
		r = tl_stream_open(c->client, name, &o, &opened);
		Py_END_ALLOW_THREADS;
		h->stream = opened;
		if (r) {
			raise_error(r);
			Py_CLEAR(h);
		}
	}
	client_end(c);
	return (PyObject *)h;
}

/* An item that is written in place. */
struct item_draft {
	PyObject_HEAD tl_item_draft *draft; /* NULL: committed or aborted */
	struct handle *stream;
	struct hold **on_gpu; /* those of its tensors there, which note the streams that write it */
	size_t n_on_gpu;
};

struct putting {
	struct source *sources;
	tl_part *parts;
	Py_ssize_t n; /* sources that have begun */
	struct copies copies;
	Py_buffer metadata;
};

static void putting_end(struct putting *p)
{
	for (Py_ssize_t i = 0; i < p->n; i++)
		source_end(&p->sources[i]);
	PyMem_Free(p->sources);
	PyMem_Free(p->parts);
	PyBuffer_Release(&p->metadata);
}

/* @names: a tuple of str, or None. The tuples stay the caller's. */
static int putting_begin(struct putting *p, PyObject *names, PyObject *arrays, PyObject *metadata,
			 PyObject *stream)
{
	Py_ssize_t n = PyTuple_Size(arrays);

	memset(p, 0, sizeof(*p));
	if (parse_stream(stream, &p->copies.named) ||
	    parse_metadata(metadata, TL_STREAM_METADATA_MAX, &p->metadata))
		return -1;
	p->sources = PyMem_Calloc((size_t)n + 1, sizeof(*p->sources));
	p->parts = PyMem_Calloc((size_t)n + 1, sizeof(*p->parts));
	if (!p->sources || !p->parts) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *name = names == Py_None ? NULL : PyTuple_GetItem(names, i);
		int r;

		if (name) {
			p->parts[i].name = name_utf8(name);
			if (!p->parts[i].name)
				return -1;
		}
		r = source_begin(&p->sources[i], PyTuple_GetItem(arrays, i), &p->copies.named);
		p->n += !r;
		if (!r)
			r = copies_add(&p->copies, &p->sources[i]);
		if (r) {
			if (name)
				raise_again_with_name(name);
			return -1;
		}
		p->parts[i].tensor = &p->sources[i].tensor;
		p->parts[i].dlpack_flags = p->sources[i].flags;
	}
	return 0;
}

/* One try at what waiting() waits for. */
typedef int try_fn(struct handle *h, void *what, const tl_stream_put_options *o, uint64_t *number);

static int put_item(struct handle *h, void *what, const tl_stream_put_options *o, uint64_t *number)
{
	const struct putting *p = what;

	return tl_stream_put(h->stream, p->parts, (size_t)p->n, o, number);
}

static int put_end(struct handle *h, void *what, const tl_stream_put_options *o, uint64_t *number)
{
	(void)what, (void)number;
	return tl_stream_end(h->stream, o);
}

/*
 * Waits in slices of a second, because a signal that comes between PyErr_CheckSignals() and the
 * sleep does not end the sleep. Returns 0; -1 with an exception; or EAGAIN or ETIMEDOUT.
 */
static int waiting(struct handle *h, try_fn *try, void *what, tl_stream_put_options *o,
		   int64_t timeout_ns, uint64_t *number)
{
	struct client *c = h->client;
	int64_t end = wait_end(timeout_ns), left;
	uint32_t over = __atomic_load_n(&c->over, __ATOMIC_SEQ_CST);
	int r;

	o->size = sizeof(*o);
	o->interrupt = &c->over;
	o->interrupt_value = over;
	for (;;) {
		left = timeout_ns ? wait_left(end) : 0;
		o->timeout_ns = left < NS_PER_SEC ? left : NS_PER_SEC;
		if (timeout_ns && !left)
			o->timeout_ns = 1; /* so that the error says who holds the stream up */
		Py_BEGIN_ALLOW_THREADS;
		r = try(h, what, o, number);
		Py_END_ALLOW_THREADS;
		if (!r)
			return 0;
		if (!left && (r == -EAGAIN || r == -ETIMEDOUT))
			return -r;
		if (slice_over(h, r))
			return -1;
	}
}

/* Returns 0, or -1 with an exception. */
static int put_waiting(struct handle *h, try_fn *try, void *what, tl_stream_put_options *o,
		       int64_t timeout_ns, uint64_t *number)
{
	int r = waiting(h, try, what, o, timeout_ns, number);

	if (r > 0)
		raise_error(-r);
	return r ? -1 : 0;
}

/* A descriptor that is readable when there may be room, or an item. */
static PyObject *handle_fileno(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	int fd = -1, r;

	(void)unused;
	if (!handle_begin(h))
		return NULL;
	r = Py_TYPE(self) == stream_type ? tl_stream_fd(h->stream, &fd)
					 : tl_subscription_fd(h->subscription, &fd);
	handle_end(h);
	return r ? raise_error(r) : PyLong_FromLong(fd);
}

static tl_stream_put_options metadata_options(const Py_buffer *metadata)
{
	return (tl_stream_put_options){ .metadata = metadata->len ? metadata->buf : NULL,
					.metadata_size = (size_t)metadata->len };
}

/* put(names, arrays, metadata, timeout, stream) -> number */
static PyObject *stream_put(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	PyObject *names, *arrays, *metadata, *timeout, *stream;
	tl_stream_put_options o;
	struct putting p;
	uint64_t number = 0;
	int64_t ns;
	int r = -1;

	if (!PyArg_ParseTuple(args, "OO!OOO", &names, &PyTuple_Type, &arrays, &metadata, &timeout,
			      &stream) ||
	    parse_seconds("timeout", timeout, &ns))
		return NULL;
	if (!putting_begin(&p, names, arrays, metadata, stream) && handle_begin(h)) {
		o = metadata_options(&p.metadata);
		o.stream = p.copies.stream;
		o.flags = p.copies.sealed ? TL_PUBLISH_SEALED : 0;
		r = put_waiting(h, put_item, &p, &o, ns, &number);
		handle_end(h);
	}
	putting_end(&p);
	return r ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *stream_end(PyObject *self, PyObject *timeout)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	tl_stream_put_options o = { 0 };
	int64_t ns;
	int r;

	if (parse_seconds("timeout", timeout, &ns) || !handle_begin(h))
		return NULL;
	r = put_waiting(h, put_end, NULL, &o, ns, NULL);
	handle_end(h);
	if (r)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *stream_reopen(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;

	(void)unused;
	if (!handle_begin(h))
		return NULL;
	tl_stream_reopen(h->stream);
	handle_end(h);
	Py_RETURN_NONE;
}

static PyObject *stream_subscribe(PyObject *self, PyObject *flags)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	tl_subscribe_options o = { .size = sizeof(o),
				   .flags = (uint32_t)PyLong_AsUnsignedLong(flags),
				   .stream = TL_STREAM_NONE }; /* a Tensor is ordered when it is
								  used */
	tl_subscription *made = NULL;
	struct handle *sub;
	int r;

	if (PyErr_Occurred() || !handle_begin(h))
		return NULL;
	sub = (struct handle *)new_object(subscription_type);
	if (sub) {
		sub->client = (struct client *)Py_NewRef((PyObject *)h->client);
		Py_BEGIN_ALLOW_THREADS;
		r = tl_stream_subscribe(h->stream, &o, &made);
		Py_END_ALLOW_THREADS;
		sub->subscription = made;
		if (r) {
			raise_error(r);
			Py_CLEAR(sub);
		}
	}
	handle_end(h);
	return (PyObject *)sub;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* The parts of a draft. */
struct drafting {
	tl_part *parts;
	DLTensor *tensors;
	int64_t (*shapes)[TL_NDIM_MAX];
	Py_ssize_t n;
	tl_item_draft *made;
};

static void drafting_end(struct drafting *d)
{
	PyMem_Free(d->parts);
	PyMem_Free(d->tensors);
	PyMem_Free(d->shapes);
}

/* @spec: a tuple of a tuple of sizes, (code, bits, lanes), and the device's type and number. */
static int drafting_part(struct drafting *d, Py_ssize_t i, PyObject *spec)
{
	DLTensor *t = &d->tensors[i];
	int code, bits, lanes, device, number;
	PyObject *sizes;

	if (!PyArg_ParseTuple(spec, "O!(iii)(ii)", &PyTuple_Type, &sizes, &code, &bits, &lanes,
			      &device, &number))
		return -1;
	t->device = (DLDevice){ (DLDeviceType)device, number };
	t->dtype = (DLDataType){ (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
	t->shape = d->shapes[i];
	d->parts[i].tensor = t;
	return parse_sizes(sizes, t->shape, &t->ndim);
}

static int drafting_begin(struct drafting *d, PyObject *names, PyObject *specs)
{
	size_t n = (size_t)PyTuple_Size(specs);

	memset(d, 0, sizeof(*d));
	d->n = (Py_ssize_t)n;
	d->parts = PyMem_Calloc(n + 1, sizeof(*d->parts));
	d->tensors = PyMem_Calloc(n + 1, sizeof(*d->tensors));
	d->shapes = PyMem_Calloc(n + 1, sizeof(*d->shapes));
	if (!d->parts || !d->tensors || !d->shapes) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < d->n; i++) {
		if (names != Py_None) {
			d->parts[i].name = name_utf8(PyTuple_GetItem(names, i));
			if (!d->parts[i].name)
				return -1;
		}
		if (drafting_part(d, i, PyTuple_GetItem(specs, i)))
			return -1;
	}
	return 0;
}

static int put_draft(struct handle *h, void *what, const tl_stream_put_options *o, uint64_t *number)
{
	struct drafting *d = what;

	(void)number;
	return tl_stream_draft(h->stream, d->parts, (size_t)d->n, o, &d->made);
}

/* draft(names, specs, metadata_size, timeout) -> ItemDraft */
static PyObject *stream_draft(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	tl_stream_put_options o = { 0 };
	PyObject *names, *specs, *timeout;
	struct item_draft *object = NULL;
	struct drafting d = { 0 };
	Py_ssize_t metadata_size;
	int64_t ns;

	if (!PyArg_ParseTuple(args, "OO!nO", &names, &PyTuple_Type, &specs, &metadata_size,
			      &timeout) ||
	    parse_seconds("timeout", timeout, &ns))
		return NULL;
	o.metadata_size = metadata_size < 0 ? SIZE_MAX : (size_t)metadata_size;
	if (!drafting_begin(&d, names, specs) && handle_begin(h)) {
		object = (struct item_draft *)new_object(item_draft_type);
		if (object)
			object->stream = (struct handle *)Py_NewRef(self);
		if (object && put_waiting(h, put_draft, &d, &o, ns, NULL))
			Py_CLEAR(object);
		if (object)
			object->draft = d.made;
		handle_end(h);
	}
	drafting_end(&d);
	return (PyObject *)object;
}

static tl_item_draft *draft_of(const struct item_draft *d)
{
	if (!d->draft)
		PyErr_SetString(PyExc_ValueError, "the draft was committed or aborted");
	return d->draft;
}

/* Keeps the hold of one of its tensors if that is on a GPU. Returns 0, or -1 with an exception. */
static int keep_on_gpu(struct item_draft *d, struct hold *h)
{
	struct hold **more;

	if (!hold_on_gpu(h))
		return 0;
	more = PyMem_Realloc(d->on_gpu, (d->n_on_gpu + 1) * sizeof(struct hold *));
	if (!more) {
		PyErr_NoMemory();
		return -1;
	}
	h->drafted = true;
	d->on_gpu = more;
	d->on_gpu[d->n_on_gpu++] = hold_ref(h);
	return 0;
}

static PyObject *draft_tensor(struct item_draft *d, size_t i, PyObject *class)
{
	DLManagedTensorVersioned *managed;
	int r = tl_item_draft_to_dlpack(d->draft, i, &managed);
	PyObject *tensor = r ? raise_error(r)
			     : tensor_over_as((PyTypeObject *)class, hold_new(managed));

	if (tensor && keep_on_gpu(d, array_hold(tensor)))
		Py_CLEAR(tensor);
	return tensor;
}

/* tensors(class) -> list of Tensors of that class, which keep the memory */
static PyObject *draft_tensors(PyObject *self, PyObject *class)
{
	WITH_LOCK;
	struct item_draft *d = (struct item_draft *)self;
	PyObject *list = draft_of(d) ? PyList_New(0) : NULL;

	for (size_t i = 0; list && tl_item_draft_tensor(d->draft, i); i++) {
		PyObject *tensor = draft_tensor(d, i, class);

		if (!tensor || PyList_Append(list, tensor))
			Py_CLEAR(list);
		Py_XDECREF(tensor);
	}
	return list;
}

/* Stores the stream that writes the parts on a GPU: the one that its user named, or else the one
 * that consumers did. Returns false with an exception: they named several. */
static bool draft_stream(const struct item_draft *d, intptr_t *stream)
{
	struct stream known = { TL_STREAM_DEFAULT, 0 };
	bool many = false;

	for (size_t i = 0; *stream == TL_STREAM_DEFAULT && i < d->n_on_gpu; i++) {
		const struct hold *h = d->on_gpu[i];

		many |= h->many_streams;
		if (h->stream.number != TL_STREAM_DEFAULT)
			many |= !stream_add(&known, stream_here(h->stream));
	}
	if (*stream == TL_STREAM_DEFAULT)
		*stream = known.number;
	return stream_known(many);
}

/* Their memory is marked on the stream at its end, so it keeps the stream's object. */
static void draft_keep_owner(const struct item_draft *d, PyObject *owner)
{
	for (size_t i = 0; i < d->n_on_gpu; i++) {
		PyObject *old = d->on_gpu[i]->stream_owner;

		d->on_gpu[i]->stream_owner = Py_NewRef(owner);
		Py_XDECREF(old);
	}
}

/* True if a consumer may have queued work that the legacy stream, on which the library marks the
 * end of an aborted draft, does not wait for. */
static bool is_written_elsewhere(const struct hold *h)
{
	return h->pid == getpid() && (h->many_streams || (h->stream.number != TL_STREAM_DEFAULT &&
							  h->stream.number != TL_STREAM_LEGACY));
}

/* It was committed, or is aborted now. */
static void draft_end(struct item_draft *d)
{
	struct hold **on_gpu = d->on_gpu;
	tl_item_draft *draft = d->draft;
	size_t n = d->n_on_gpu;

	d->draft = NULL;
	d->on_gpu = NULL;
	d->n_on_gpu = 0;
	for (size_t i = 0; draft && i < n; i++) {
		if (!is_written_elsewhere(on_gpu[i]))
			continue;
		gpu_finish(on_gpu[i]->managed->dl_tensor.device.device_id);
		break; /* all are on one */
	}
	Py_BEGIN_ALLOW_THREADS;
	tl_item_draft_abort(draft);
	Py_END_ALLOW_THREADS;
	for (size_t i = 0; i < n; i++)
		hold_unref_py(on_gpu[i]);
	PyMem_Free(on_gpu);
}

static int commit_draft(struct handle *h, void *what, const tl_stream_put_options *o,
			uint64_t *number)
{
	struct item_draft *d = what;
	int r = tl_item_draft_commit(d->draft, o, number);

	(void)h;
	if (!r)
		d->draft = NULL;
	return r;
}

/* commit(metadata, timeout, stream) -> number */
static PyObject *draft_commit(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct item_draft *d = (struct item_draft *)self;
	PyObject *metadata, *timeout, *stream;
	tl_stream_put_options o;
	Py_buffer buffer = { 0 };
	uint64_t number = 0;
	intptr_t named;
	int64_t ns;
	int r = -1;

	if (!PyArg_ParseTuple(args, "OOO", &metadata, &timeout, &stream) ||
	    parse_seconds("timeout", timeout, &ns) || parse_stream(stream, &named) ||
	    parse_metadata(metadata, TL_STREAM_METADATA_MAX, &buffer))
		return NULL;
	if (stream != Py_None)
		draft_keep_owner(d, stream);
	if (draft_of(d) && draft_stream(d, &named) && handle_begin(d->stream)) {
		o = metadata_options(&buffer);
		o.stream = named;
		r = put_waiting(d->stream, commit_draft, d, &o, ns, &number);
		handle_end(d->stream);
	}
	if (!r)
		draft_end(d);
	PyBuffer_Release(&buffer);
	return r ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *draft_abort(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	(void)unused;
	draft_end((struct item_draft *)self);
	Py_RETURN_NONE;
}

static void draft_dealloc(PyObject *self)
{
	WITH_LOCK;
	struct item_draft *d = (struct item_draft *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);

	draft_end(d);
	Py_XDECREF((PyObject *)d->stream);
	end(self);
	Py_DECREF(type);
}

/* ---- subscriptions --------------------------------------------------------------------------- */

/* *@what is NULL at the end of the stream. */
static int take_item(struct handle *h, void *what, const tl_stream_put_options *o, uint64_t *number)
{
	tl_item **item = what;
	int r = tl_stream_take(h->subscription,
			       &TL_INIT(tl_wait_options, .timeout_ns = o->timeout_ns,
					.interrupt = o->interrupt,
					.interrupt_value = o->interrupt_value),
			       item);

	(void)number;
	return r == -EPIPE ? 0 : r;
}

/* take(timeout) -> Item; None: none came in time; False: the stream was ended */
static PyObject *subscription_take(PyObject *self, PyObject *timeout)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	tl_stream_put_options o = { 0 };
	PyObject *object;
	tl_item *item = NULL;
	int64_t ns;
	int r;

	if (parse_seconds("timeout", timeout, &ns))
		return NULL;
	object = item_new();
	if (!object || !handle_begin(h)) {
		Py_XDECREF(object);
		return NULL;
	}
	r = waiting(h, take_item, &item, &o, ns, NULL);
	item_set(object, item);
	handle_end(h);
	if (item)
		return object;
	Py_DECREF(object);
	return r < 0 ? NULL : Py_NewRef(r ? Py_None : Py_False);
}

/* ---- types ----------------------------------------------------------------------------------- */

static PyMethodDef stream_methods[] = {
	{ "put", stream_put, METH_VARARGS, NULL },
	{ "draft", stream_draft, METH_VARARGS, NULL },
	{ "end", stream_end, METH_O, NULL },
	{ "reopen", stream_reopen, METH_NOARGS, NULL },
	{ "subscribe", stream_subscribe, METH_O, NULL },
	{ "fileno", handle_fileno, METH_NOARGS, NULL },
	{ "close", handle_close, METH_NOARGS, NULL },
	{ 0 },
};

static PyMethodDef subscription_methods[] = {
	{ "take", subscription_take, METH_O, NULL },
	{ "fileno", handle_fileno, METH_NOARGS, NULL },
	{ "close", handle_close, METH_NOARGS, NULL },
	{ 0 },
};

static PyMethodDef draft_methods[] = {
	{ "tensors", draft_tensors, METH_O, NULL },
	{ "commit", draft_commit, METH_VARARGS, NULL },
	{ "abort", draft_abort, METH_NOARGS, NULL },
	{ 0 },
};

#define HANDLE_TYPE(type_name, its_methods)                                                        \
	static PyType_Slot its_methods##_slots[] = {                                               \
		{ Py_tp_dealloc, handle_dealloc },                                                 \
		{ Py_tp_traverse, handle_traverse },                                               \
		{ Py_tp_methods, its_methods },                                                    \
		{ 0, NULL },                                                                       \
	};                                                                                         \
	static PyType_Spec its_methods##_spec = {                                                  \
		.name = "tensorlease._core." type_name,                                            \
		.basicsize = sizeof(struct handle),                                                \
		.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |                  \
			 Py_TPFLAGS_HAVE_GC,                                                       \
		.slots = its_methods##_slots,                                                      \
	}

HANDLE_TYPE("Stream", stream_methods);
HANDLE_TYPE("Subscription", subscription_methods);

static PyType_Slot draft_slots[] = {
	{ Py_tp_dealloc, draft_dealloc },
	{ Py_tp_methods, draft_methods },
	{ 0, NULL },
};

static PyType_Spec draft_spec = {
	.name = "tensorlease._core.ItemDraft",
	.basicsize = sizeof(struct item_draft),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = draft_slots,
};

int stream_init(PyObject *module)
{
	(void)module;
	stream_type = (PyTypeObject *)PyType_FromSpec(&stream_methods_spec);
	subscription_type = (PyTypeObject *)PyType_FromSpec(&subscription_methods_spec);
	item_draft_type = (PyTypeObject *)PyType_FromSpec(&draft_spec);
	return stream_type && subscription_type && item_draft_type ? item_init() : -1;
}
