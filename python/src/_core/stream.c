/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, subscriptions and items. A handle has a reference to its client. A call on it counts as
 * a call of the client, so that close() of the client waits for its end and interrupts its wait. If
 * the handle is closed while calls are under way, the last of them closes it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/stream.h>

#include "client.h"
#include "cuda.h"
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

struct item {
	PyObject_HEAD tl_item *item; /* NULL: released */
	int64_t timeout_ns;
};

static PyTypeObject *stream_type, *subscription_type, *item_type;

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
	struct handle *h;
	const char *name;
	int r;

	if (!PyArg_ParseTuple(args, "OIIIIIOO", &name_object, &o.mode, &o.depth, &o.keep,
			      &o.max_tries, &o.flags, &ttl, &owner_bound) ||
	    parse_lifetime(ttl, owner_bound, NULL, &o.ttl_ns, &o.lifetime))
		return NULL;
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

struct putting {
	struct source *sources;
	tl_part *parts;
	Py_ssize_t n; /* sources that have begun */
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
static int putting_begin(struct putting *p, PyObject *names, PyObject *arrays, PyObject *metadata)
{
	Py_ssize_t n = PyTuple_Size(arrays);

	memset(p, 0, sizeof(*p));
	if (parse_metadata(metadata, &p->metadata))
		return -1;
	p->sources = PyMem_Calloc((size_t)n + 1, sizeof(*p->sources));
	p->parts = PyMem_Calloc((size_t)n + 1, sizeof(*p->parts));
	if (!p->sources || !p->parts) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *name = names == Py_None ? NULL : PyTuple_GetItem(names, i);

		if (name) {
			p->parts[i].name = name_utf8(name);
			if (!p->parts[i].name)
				return -1;
		}
		if (source_begin(&p->sources[i], PyTuple_GetItem(arrays, i), NULL)) {
			if (name)
				raise_again_with_name(name);
			return -1;
		}
		p->n++;
		p->parts[i].tensor = &p->sources[i].tensor;
		p->parts[i].dlpack_flags = p->sources[i].flags;
	}
	return 0;
}

/* Puts, or ends the stream if @p is NULL. Waits in slices of a second, because a signal that comes
 * between PyErr_CheckSignals() and the sleep does not end the sleep. */
static int put_waiting(struct handle *h, const struct putting *p, int64_t timeout_ns,
		       uint64_t *number)
{
	struct client *c = h->client;
	int64_t end = wait_end(timeout_ns), left;
	uint32_t over = __atomic_load_n(&c->over, __ATOMIC_SEQ_CST);
	tl_stream_put_options o = { .size = sizeof(o),
				    .interrupt = &c->over,
				    .interrupt_value = over };
	int r;

	if (p && p->metadata.len) {
		o.metadata = p->metadata.buf;
		o.metadata_size = (size_t)p->metadata.len;
	}
	for (;;) {
		left = timeout_ns ? wait_left(end) : 0;
		o.timeout_ns = left < NS_PER_SEC ? left : NS_PER_SEC;
		if (timeout_ns && !left)
			o.timeout_ns = 1; /* so that the error says who holds the stream up */
		Py_BEGIN_ALLOW_THREADS;
		r = p ? tl_stream_put(h->stream, p->parts, (size_t)p->n, &o, number)
		      : tl_stream_end(h->stream, &o);
		Py_END_ALLOW_THREADS;
		if (!r)
			return 0;
		if (!left && (r == -EAGAIN || r == -ETIMEDOUT)) {
			raise_error(r);
			return -1;
		}
		if (slice_over(h, r))
			return -1;
	}
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

/* put(names, arrays, metadata, timeout) -> number */
static PyObject *stream_put(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	PyObject *names, *arrays, *metadata, *timeout;
	struct putting p;
	uint64_t number = 0;
	int64_t ns;
	int r = -1;

	if (!PyArg_ParseTuple(args, "OO!OO", &names, &PyTuple_Type, &arrays, &metadata, &timeout) ||
	    parse_seconds("timeout", timeout, &ns))
		return NULL;
	if (!putting_begin(&p, names, arrays, metadata) && handle_begin(h)) {
		r = put_waiting(h, &p, ns, &number);
		handle_end(h);
	}
	putting_end(&p);
	return r ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *stream_end(PyObject *self, PyObject *timeout)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	int64_t ns;
	int r;

	if (parse_seconds("timeout", timeout, &ns) || !handle_begin(h))
		return NULL;
	r = put_waiting(h, NULL, ns, NULL);
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

/* Weak, until every library that there is has it. */
int tl_stream_length(const tl_stream *stream, uint64_t *n) __attribute__((weak));

/* length() -> how many items of a queue nobody has taken */
static PyObject *stream_length(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	uint64_t n = 0;
	int r;

	(void)unused;
	if (!tl_stream_length) {
		PyErr_SetString(PyExc_NotImplementedError,
				"the C library cannot count what waits in a stream");
		return NULL;
	}
	if (!handle_begin(h))
		return NULL;
	r = tl_stream_length(h->stream, &n);
	handle_end(h);
	return r ? raise_error(r) : PyLong_FromUnsignedLongLong(n);
}

static PyObject *stream_subscribe(PyObject *self, PyObject *flags)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	tl_subscribe_options o = { .size = sizeof(o),
				   .flags = (uint32_t)PyLong_AsUnsignedLong(flags) };
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

/* ---- subscriptions --------------------------------------------------------------------------- */

/* Returns 0 with *@item, 1 if none came in time, 2 at the end of the stream, or -1 with an
 * exception. */
static int take_waiting(struct handle *h, int64_t timeout_ns, tl_item **item)
{
	struct client *c = h->client;
	int64_t end = wait_end(timeout_ns), left;
	uint32_t over = __atomic_load_n(&c->over, __ATOMIC_SEQ_CST);
	int r;

	for (;;) {
		left = timeout_ns ? wait_left(end) : 0;
		Py_BEGIN_ALLOW_THREADS;
		r = tl_stream_take(h->subscription,
				   &TL_INIT(tl_wait_options,
					    .timeout_ns = left < NS_PER_SEC ? left : NS_PER_SEC,
					    .interrupt = &c->over, .interrupt_value = over),
				   item);
		Py_END_ALLOW_THREADS;
		if (!r)
			return 0;
		if (r == -EPIPE)
			return 2;
		if (!left && (r == -EAGAIN || r == -ETIMEDOUT))
			return 1;
		if (slice_over(h, r))
			return -1;
	}
}

/* take(timeout) -> Item; None: none came in time; False: the stream was ended */
static PyObject *subscription_take(PyObject *self, PyObject *timeout)
{
	WITH_LOCK;
	struct handle *h = (struct handle *)self;
	struct item *object;
	tl_item *item = NULL;
	int64_t ns;
	int r;

	if (parse_seconds("timeout", timeout, &ns))
		return NULL;
	object = (struct item *)new_object(item_type);
	if (!object || !handle_begin(h)) {
		Py_XDECREF((PyObject *)object);
		return NULL;
	}
	r = take_waiting(h, ns, &item);
	object->item = item;
	object->timeout_ns = h->client->timeout_ns;
	handle_end(h);
	if (!r)
		return (PyObject *)object;
	Py_DECREF((PyObject *)object);
	if (r < 0)
		return NULL;
	return Py_NewRef(r == 1 ? Py_None : Py_False);
}

/* ---- items ----------------------------------------------------------------------------------- */

static tl_item *item_of(PyObject *self)
{
	tl_item *item = ((struct item *)self)->item;

	if (!item)
		PyErr_SetString(PyExc_ValueError, "the item was released");
	return item;
}

/* info() -> (number, put_ns, skipped, tries, producer, metadata) */
static PyObject *item_info(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item = item_of(self);

	(void)unused;
	if (!item)
		return NULL;
	tl_item_get_info(item, &info);
	return Py_BuildValue(
		"(KKKIIy#)", (unsigned long long)info.number, (unsigned long long)info.put_ns,
		(unsigned long long)info.skipped, (unsigned)info.tries, (unsigned)info.producer,
		info.metadata ? (const char *)info.metadata : "", (Py_ssize_t)info.metadata_size);
}

/* tensors() -> list of (name or None, Tensor); each Tensor keeps the item */
static PyObject *item_tensors(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	tl_item *item = item_of(self);
	size_t n = tl_item_count(item);
	PyObject *list = item ? PyList_New((Py_ssize_t)n) : NULL;

	(void)unused;
	for (size_t i = 0; list && i < n; i++) {
		DLManagedTensorVersioned *managed = NULL;
		PyObject *tensor, *pair = NULL;
		const char *name = NULL;
		int r = tl_item_to_dlpack(item, i, &managed);

		tl_item_tensor(item, i, &name);
		tensor = r ? raise_error(r) : tensor_from(managed);
		if (tensor)
			pair = Py_BuildValue("(zN)", name, tensor);
		if (!pair)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, (Py_ssize_t)i, pair);
	}
	return list;
}

static PyObject *item_done(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	tl_item *item = item_of(self);
	int r;

	(void)unused;
	if (!item)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_item_done(item);
	Py_END_ALLOW_THREADS;
	if (r)
		return raise_error(r);
	Py_RETURN_NONE;
}

static PyObject *item_release(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct item *i = (struct item *)self;
	tl_item *item = i->item;
	int r = 0;

	(void)unused;
	i->item = NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_item_release(item);
	Py_END_ALLOW_THREADS;
	if (r)
		return raise_error(r);
	Py_RETURN_NONE;
}

static void item_dealloc(PyObject *self)
{
	WITH_LOCK;
	struct item *i = (struct item *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);
	tl_item *item = i->item;

	if (item) {
		Py_BEGIN_ALLOW_THREADS;
		tl_item_release(item);
		Py_END_ALLOW_THREADS;
	}
	end(self);
	Py_DECREF(type);
}

/* ---- types ----------------------------------------------------------------------------------- */

static PyMethodDef stream_methods[] = {
	{ "put", stream_put, METH_VARARGS, NULL },
	{ "end", stream_end, METH_O, NULL },
	{ "reopen", stream_reopen, METH_NOARGS, NULL },
	{ "length", stream_length, METH_NOARGS, NULL },
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

static PyMethodDef item_methods[] = {
	{ "info", item_info, METH_NOARGS, NULL },
	{ "tensors", item_tensors, METH_NOARGS, NULL },
	{ "done", item_done, METH_NOARGS, NULL },
	{ "release", item_release, METH_NOARGS, NULL },
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

static PyType_Slot item_slots[] = {
	{ Py_tp_dealloc, item_dealloc },
	{ Py_tp_methods, item_methods },
	{ 0, NULL },
};

static PyType_Spec item_spec = {
	.name = "tensorlease._core.Item",
	.basicsize = sizeof(struct item),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = item_slots,
};

int stream_init(PyObject *module)
{
	(void)module;
	stream_type = (PyTypeObject *)PyType_FromSpec(&stream_methods_spec);
	subscription_type = (PyTypeObject *)PyType_FromSpec(&subscription_methods_spec);
	item_type = (PyTypeObject *)PyType_FromSpec(&item_spec);
	return stream_type && subscription_type && item_type ? 0 : -1;
}
