/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Client. A client of the library must not be closed while a call uses it. So calls are counted
 * under the GIL. close() wakes calls that wait, and the last call to end does the closing.
 */
#include <errno.h>

#include "client.h"
#include "cuda.h"
#include "draft.h"
#include "lock.h"
#include "wait.h"

PyTypeObject *client_base;

/* ---- Life ---- */

/* Takes any arguments: a subclass's are for its __init__(), which calls ours. */
static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)args;
	(void)kwargs;
	return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

/* _connect(address, namespace, autostart, timeout, label), once */
static PyObject *client_connect(PyObject *o, PyObject *args)
{
	WITH_LOCK;
	struct client *self = (struct client *)o;
	PyObject *address = Py_None, *path = NULL, *timeout = NULL;
	tl_connect_options options = { .size = sizeof(options) };
	tl_client *client = NULL;
	int autostart = 1, r;

	if (!PyArg_ParseTuple(args, "OzpOz", &address, &options.namespace_name, &autostart,
			      &timeout, &options.label) ||
	    parse_seconds("timeout", timeout, &options.timeout_ns))
		return NULL;
	if (address != Py_None) {
		path = parse_path("address", address);
		if (!path)
			return NULL;
		options.address = PyBytes_AsString(path);
	}
	if (!options.timeout_ns)
		options.timeout_ns = CLIENT_TIMEOUT_NS;
	options.flags = autostart ? TL_CONNECT_AUTOSTART : 0;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_connect(&options, &client);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_connect_error(r);
	Py_XDECREF(path);
	if (r)
		return NULL;
	if (self->client || self->closing) {
		tl_close(client);
		PyErr_SetString(PyExc_ValueError, "the client is connected already, or was closed");
		return NULL;
	}
	self->client = client;
	self->timeout_ns = options.timeout_ns;
	Py_RETURN_NONE;
}

bool client_begin(struct client *c)
{
	if (!c->client || c->closing) {
		PyErr_SetString(PyExc_ValueError,
				c->closing ? "the client is closed"
					   : "the client was never connected: the __init__() of a "
					     "subclass must call super().__init__() first");
		return false;
	}
	calls_begin(&c->calls);
	return true;
}

/* Gives the GIL up: this may wait for the GPU, and for deleters that need the GIL. */
static int close_now(struct client *c)
{
	tl_client *client = c->client;
	int r;

	c->client = NULL;
	calls_begin(&c->ends); /* first: it gives the GIL up, and a watch must not end beside it */
	drafts_abort(c);
	Py_BEGIN_ALLOW_THREADS;
	r = tl_close(client);
	Py_END_ALLOW_THREADS;
	calls_end(&c->ends);
	watches_close_ended(c);
	return r;
}

/* Closes where there is no caller for an exception; sys.unraisablehook gets it instead. An
 * exception that is already set stays. */
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
	if (calls_end(&c->calls) && c->closing && c->client)
		close_aside(c);
}

static PyObject *client_close(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	int r;

	(void)unused;
	c->closing = true;
	wait_wake(&c->over);
	wait_wake(&c->rescan);
	r = c->client && !calls_any(&c->calls) ? close_now(c) : 0;
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
	/* options.stream is TL_STREAM_NONE: a stream may need the driver, which must run without
	 * the GIL. */
	intptr_t stream;
	int64_t end; /* of the wait; 0: it has not begun */
	DLManagedTensorVersioned *tensor;
	struct wait wait;
	bool late; /* there is none, or it did not come or was not written in time */
};

/* The time until which it may last. A get without a timeout waits for the producer's work for the
 * client's. */
static int64_t get_end(const struct client *c, struct getting *g)
{
	if (!g->end)
		g->end = wait_end(g->timeout_ns ? g->timeout_ns : c->timeout_ns);
	return g->end;
}

/* A get for a device waits for the producer's work: in slices, since nothing ends that wait, and
 * only if the tensor is there. */
static int get_for_device(struct getting *g)
{
	tl_get_options o = g->options;
	DLManagedTensorVersioned *found;
	int64_t left = wait_left(g->end);
	int r;

	o.flags = 0;
	o.mode = TL_MODE_READ;
	o.stream = TL_STREAM_NONE;
	r = tl_get(g->client, g->name, &o, &found);
	if (r)
		return r;
	found->deleter(found);
	o = g->options;
	o.timeout_ns = !left ? 1 : left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
	return tl_get(g->client, g->name, &o, &g->tensor);
}

static int get_look(void *context)
{
	struct getting *g = context;
	int r = g->options.flags & TL_GET_DEVICE
			? get_for_device(g)
			: tl_get(g->client, g->name, &g->options, &g->tensor);
	tl_info info = { .size = sizeof(info) };

	/*
	 * For a caller that waits, a lost tensor counts as old: only a newer version ends the wait.
	 */
	if (r == -ENODATA && !tl_stat(g->client, g->name, &info) && info.lost)
		g->wait.item.newer_than = info.version;
	return r;
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

/*
 * Keeps the GIL, since this makes no request: a thread that gives the GIL up may have to wait 5 ms
 * for another thread to give it back.
 */
static int get_local(struct getting *g)
{
	int r;

	if (g->options.mode != TL_MODE_READ || g->options.flags)
		return -EDEADLK;
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

static int get_wait(struct client *c, struct getting *g)
{
	int64_t began = now_ns(), end = get_end(c, g);
	int r = get_spin(c, g, end);

	if (r > 0)
		r = client_wait(c, &g->wait, end == INT64_MAX ? -1 : wait_left(end));
	if (r <= 0)
		return r;
	r = get_now(g);
	if (!r)
		return 0;
	g->late = r == -ENOENT || r == -EAGAIN || r == -ETIMEDOUT;
	if (g->late && r != -ETIMEDOUT) /* of which the library says more */
		return wait_late(c, g->name, g->options.newer_than, g->timeout_ns, began);
	raise_error(r);
	return -1;
}

/* The first look of a get for a device. Returns 0, a negative errno, or 1 with an exception. */
static int get_written(struct client *c, struct getting *g)
{
	int64_t end = get_end(c, g);

	for (;;) {
		int r = get_now(g);

		if (r != -ETIMEDOUT || g->timeout_ns)
			return r;
		g->late = !wait_left(end);
		if (g->late)
			return r;
		if (c->closing)
			wait_closed("a get");
		if (c->closing || PyErr_CheckSignals())
			return 1;
	}
}

/* Gets it as a Tensor, for the stream that the user named by @owner. What is lost while it waits
 * for the producer's work counts as old, as above. */
static PyObject *get_tensor(struct client *c, struct getting *g, PyObject *owner)
{
	PyObject *tensor;
	int r;

	for (;;) {
		r = g->options.flags ? get_written(c, g) : get_now(g);
		if (r < 0 && g->timeout_ns && (worth_waiting(r) || r == -ENODATA))
			r = get_wait(c, g);
		else if (r < 0)
			raise_missing(c, g->name, r);
		g->late |= r == -ENOENT || r == -EAGAIN;
		tensor = r ? NULL : tensor_got(c, g->tensor);
		if (!tensor)
			return NULL;
		r = g->stream == TL_STREAM_DEFAULT
			    ? 0
			    : tensor_order(tensor, g->stream, owner, c, get_end(c, g));
		if (!r)
			return tensor;
		Py_DECREF(tensor);
		g->late = r == -ETIMEDOUT;
		if (r != -ENODATA || !g->timeout_ns)
			return NULL;
		PyErr_Clear();
	}
}

static PyObject *client_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *names)
{
	WITH_LOCK;
	PyObject *name = NULL, *timeout = NULL, *newer = NULL, *mode = NULL, *spin = NULL,
		 *stream = NULL, *fallback = NULL, *device = NULL;
	const struct keyword keywords[] = {
		{ "name", &name },	  { "timeout", &timeout }, { "newer_than", &newer },
		{ "mode", &mode },	  { "spin", &spin },	   { "stream", &stream },
		{ "default", &fallback }, { "device", &device },   { NULL, NULL }
	};
	struct client *c = (struct client *)self;
	struct getting g = { .options = { .size = sizeof(g.options), .stream = TL_STREAM_NONE } };
	PyObject *tensor;

	if (parse_arguments("get", args, nargs, names, 1, keywords))
		return NULL;
	g.name = name_utf8(name);
	if (!g.name || parse_seconds("timeout", timeout, &g.timeout_ns) ||
	    parse_mode(mode, &g.options.mode) || parse_seconds("spin", spin, &g.spin_ns) ||
	    parse_stream(stream, &g.stream) || parse_target(device, &g.options) ||
	    parse_uint64("newer_than", newer == Py_None ? NULL : newer, &g.options.newer_than))
		return NULL;
	if (g.options.flags && g.stream != TL_STREAM_DEFAULT)
		g.options.stream = g.stream; /* a copy is made there; else get() waits for it */
	if (!client_begin(c))
		return NULL;
	g.client = c->client;
	g.wait = (struct wait){ .item = { .name = g.name, .newer_than = g.options.newer_than },
				.look = get_look,
				.context = &g };
	tensor = get_tensor(c, &g, stream);
	client_end(c);
	if (tensor || !fallback || !g.late)
		return tensor;
	PyErr_Clear();
	return Py_NewRef(fallback);
}

/* _receive(token, mode) -> Tensor */
static PyObject *client_receive(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	tl_get_options o = { .size = sizeof(o), .stream = TL_STREAM_NONE };
	DLManagedTensorVersioned *managed = NULL;
	const unsigned char *token;
	PyObject *mode, *tensor = NULL;
	Py_ssize_t n;
	int r;

	if (!PyArg_ParseTuple(args, "y#O", &token, &n, &mode) || parse_mode(mode, &o.mode))
		return NULL;
	if (n != TL_TOKEN_SIZE)
		return raise_text(-EINVAL, "a token has %d bytes, and this one %zd", TL_TOKEN_SIZE,
				  n);
	if (!client_begin(c))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_receive(c->client, token, &o, &managed);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	else
		tensor = tensor_got(c, managed);
	client_end(c);
	return tensor;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;

	(void)unused;
	return PyBool_FromLong(!c->client || c->closing);
}

static const char get_doc[] =
	"get($self, name, *, timeout=None, newer_than=None, mode='r', spin=None, stream=None, default=...,\n    device=None)\n--\n\n"
	"Takes a lease on the tensor that name means now, and returns it as a Tensor over the same memory.\n\n"
	"timeout: seconds to wait for the name, or for a newer version. None: do not wait. inf: wait forever.\n"
	"newer_than: a version; only a version above it is returned.\n"
	"mode: 'r' for read-only, or 'c' for copy-on-write: writable, but nobody else sees what is written.\n"
	"spin: seconds of the timeout to spin before sleeping. This is the fastest way to see a commit.\n"
	"stream: the stream that will use the memory of a tensor on a GPU. get() waits until another process has written\n"
	"    the tensor, for what is left of timeout, or without one for the client's; for work of this process the\n"
	"    stream waits. The lease ends when the work on it is done. -1: no order. Consumers by DLPack, such as torch()\n"
	"    and cupy.from_dlpack(), name their stream themselves. So it is only needed for the tensor's address and\n"
	"    for __cuda_array_interface__.\n"
	"device: where the tensor is wanted: 'cpu', 'cuda:1', a torch.device, ... If it is elsewhere, get() returns a writable\n"
	"    copy there, whose attribute `copied` is True: made on stream, or before get() returns. None: where it is.\n"
	"default: what to return, instead of raising one of the first three errors, if there is no such tensor.\n"
	"NotFoundError (a FileNotFoundError and a KeyError): no tensor has that name. NotNewerError (a BlockingIOError):\n"
	"there is no newer version. TimeoutError: none came, or its producer has not finished it, in time.\n"
	"DisconnectedError: the daemon has ended. TensorLostError: the GPU memory is lost with its producer. NoDeviceError:\n"
	"CUDA or that GPU cannot be used here.";

static PyMethodDef methods[] = {
	{ "get", FASTCALL(client_get), METH_FASTCALL | METH_KEYWORDS, get_doc },
	{ "_receive", client_receive, METH_VARARGS, NULL },
	{ "put", FASTCALL(client_put), METH_FASTCALL | METH_KEYWORDS, put_doc },
	{ "_publish", FASTCALL(client_publish), METH_FASTCALL | METH_KEYWORDS, NULL },
	{ "_create", client_create, METH_VARARGS, NULL },
	{ "_delete", client_delete, METH_VARARGS, NULL },
	{ "kick", client_kick, METH_O, kick_doc },
	{ "kick_user", client_kick_user, METH_O, kick_user_doc },
	{ "_put_many", many_put, METH_VARARGS, NULL },
	{ "_publish_many", many_publish, METH_VARARGS, NULL },
	{ "_get_many", many_get, METH_VARARGS, NULL },
	{ "_get_all", many_get_all, METH_VARARGS, NULL },
	{ "_gather", many_gather, METH_VARARGS, NULL },
	{ "_load", file_load, METH_VARARGS, NULL },
	{ "_save", file_save, METH_VARARGS, NULL },
	{ "_uid", client_uid, METH_NOARGS, NULL },
	{ "_stat", look_stat, METH_O, NULL },
	{ "_list", look_list, METH_O, NULL },
	{ "_status", look_status, METH_NOARGS, NULL },
	{ "_devices", look_devices, METH_NOARGS, NULL },
	{ "_clients", look_clients, METH_NOARGS, NULL },
	{ "_readers", look_readers, METH_O, NULL },
	{ "_holdings", look_holdings, METH_O, NULL },
	{ "_streams", look_streams, METH_O, NULL },
	{ "_stream_info", look_stream, METH_O, NULL },
	{ "_members", look_members, METH_O, NULL },
	{ "_wait_many", client_wait_many, METH_VARARGS, NULL },
	{ "_claim", client_claim, METH_VARARGS, NULL },
	{ "_claim_many", client_claim_many, METH_VARARGS, NULL },
	{ "_unclaim", client_unclaim, METH_VARARGS, NULL },
	{ "_watch", client_watch, METH_VARARGS, NULL },
	{ "_stream", client_stream, METH_VARARGS, NULL },
	{ "_wake", client_wake, METH_NOARGS, NULL },
	{ "_late", client_late, METH_VARARGS, NULL },
	{ "_wake_word", client_wake_word, METH_NOARGS, NULL },
	{ "_connect", client_connect, METH_VARARGS, NULL },
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
