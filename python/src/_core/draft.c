/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Draft: memory that will become a tensor. It is an exported draft of the library
 * (tl_draft_to_dlpack()), so that its views in Python stay valid for reading after the commit. A
 * commit hands a description of the same bytes to tl_publish(), which recognises them by their
 * address. It owns a reference to the hold: if the draft's daemon has ended, the library publishes
 * memory of a GPU as any other and keeps it.
 */
#include <errno.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "cuda.h"
#include "draft.h"
#include "lock.h"
#include "source.h"
#include "wait.h"

PyTypeObject *draft_base;

static allocfunc allocate;

bool is_draft(PyObject *o)
{
	return PyObject_TypeCheck(o, draft_base);
}

static struct hold *hold_of(const struct draft *d)
{
	return d->array.hold ? d->array.hold : d->doubted;
}

static void drafts_add(struct client *c, struct draft *d)
{
	d->next = c->drafts;
	d->link = &c->drafts;
	if (d->next)
		d->next->link = &d->next;
	c->drafts = d;
}

static void drafts_remove(struct draft *d)
{
	if (!d->link)
		return;
	*d->link = d->next;
	if (d->next)
		d->next->link = d->link;
	d->next = NULL;
	d->link = NULL;
}

/*
 * A tensor of the library whose bytes have no address is recognised by its struct, which a commit
 * consumes. So the hold of such a draft has a struct of its own with the same shape, which others
 * read until the hold ends.
 */
struct empty {
	DLManagedTensorVersioned managed;
	DLManagedTensorVersioned *exported; /* the library's; NULL: it was consumed */
	int64_t dims[];			    /* the shape, then the strides */
};

static void empty_free(DLManagedTensorVersioned *self)
{
	struct empty *e = (struct empty *)self;

	if (e->exported)
		e->exported->deleter(e->exported);
	free(e);
}

/* Takes @exported over if it succeeds. */
static DLManagedTensorVersioned *empty_of(DLManagedTensorVersioned *exported)
{
	const DLTensor *t = &exported->dl_tensor;
	size_t ndim = (size_t)t->ndim;
	struct empty *e = malloc(sizeof(*e) + 2 * ndim * sizeof(int64_t));

	if (!e)
		return NULL;
	e->exported = exported;
	e->managed = (DLManagedTensorVersioned){
		.version = exported->version,
		.deleter = empty_free,
		.flags = exported->flags,
		.dl_tensor = *t,
	};
	for (size_t i = 0; i < ndim; i++) {
		e->dims[i] = t->shape[i];
		e->dims[ndim + i] = t->strides ? t->strides[i] : 0;
	}
	e->managed.dl_tensor.shape = e->dims;
	if (t->strides)
		e->managed.dl_tensor.strides = e->dims + ndim;
	return &e->managed;
}

/* Returns where a hold has what the library has to be given instead, or NULL. */
static DLManagedTensorVersioned **exported_of(const struct hold *h)
{
	return h->managed->deleter == empty_free ? &((struct empty *)h->managed)->exported : NULL;
}

void abort_py(tl_draft *draft)
{
	Py_BEGIN_ALLOW_THREADS;
	tl_abort(draft);
	Py_END_ALLOW_THREADS;
}

PyObject *draft_from(struct client *c, PyObject *name, tl_draft *draft)
{
	DLManagedTensorVersioned *managed, *empty;
	struct draft *d;
	struct hold *h;
	int r = tl_draft_to_dlpack(draft, &managed);

	if (r) {
		raise_error(r);
		abort_py(draft);
		return NULL;
	}
	if (!managed->dl_tensor.data) { /* no bytes means no address */
		empty = empty_of(managed);
		if (!empty) {
			lease_end(managed);
			return PyErr_NoMemory();
		}
		managed = empty;
	}
	h = hold_new(managed);
	if (!h)
		return NULL;
	d = (struct draft *)allocate(draft_type ? draft_type : draft_base, 0);
	if (!d) {
		hold_unref_py(h);
		return NULL;
	}
	d->array.hold = h;
#ifdef Py_GIL_DISABLED
	d->weak = PyWeakref_NewRef((PyObject *)d, NULL);
	if (!d->weak) {
		Py_DECREF(d); /* aborts the draft */
		return NULL;
	}
#endif
	d->client = (struct client *)Py_NewRef(c);
	d->name = Py_NewRef(name);
	d->forks = forks;
	d->state = DRAFT_OPEN;
	d->handle = hold_on_gpu(h) ? draft : NULL;
	drafts_add(c, d);
	return (PyObject *)d;
}

static void draft_ended(struct draft *d, enum draft_state state)
{
	struct hold *h = hold_of(d);

	drafts_remove(d);
	d->state = state;
	d->array.hold = d->doubted = NULL;
	d->handle = NULL;
	hold_unref_py(h);
}

void numpy_seal(PyObject *array)
{
	PyObject *flags = PyObject_GetAttrString(array, "flags");

	if (!flags || PyObject_SetAttrString(flags, "writeable", Py_False))
		PyErr_WriteUnraisable(array);
	Py_XDECREF(flags);
}

/* Returns a reference to the array that numpy() made, or NULL if it is not used any more. */
static PyObject *numpy_of(const struct draft *d)
{
	PyObject *array = d->numpy ? PyObject_CallNoArgs(d->numpy) : NULL;

	if (array == Py_None)
		Py_CLEAR(array);
	return array;
}

/* Keeps the exception that is set. */
static void draft_seal(const struct draft *d)
{
	PyObject *type, *value, *traceback, *array;

	PyErr_Fetch(&type, &value, &traceback);
	array = numpy_of(d);
	if (array)
		numpy_seal(array);
	Py_XDECREF(array);
	PyErr_Restore(type, value, traceback);
}

void draft_committed(struct draft *d, PyObject *name, uint64_t version)
{
	PyObject *old = d->name;

	d->name = Py_NewRef(name);
	d->version = version;
	Py_DECREF(old);
	draft_ended(d, DRAFT_COMMITTED);
	draft_seal(d);
}

void draft_failed(struct draft *d, int r)
{
	if (r != -EINPROGRESS && r != -ENOTCONN && r != -ETIMEDOUT)
		return;
	if (d->array.hold)
		d->doubted = d->array.hold;
	d->array.hold = NULL;
	d->state = DRAFT_UNKNOWN;
	draft_seal(d);
}

/* ---- The stream that writes it, on a GPU ---- */

static void set_stream(struct draft *d, intptr_t stream)
{
	d->stream = stream_named(stream);
	tl_draft_set_stream(d->handle, stream);
}

void draft_used_on(struct draft *d, intptr_t stream)
{
	if (!d->handle || d->stream_said || stream == TL_STREAM_NONE)
		return;
	if (stream_add(&d->stream, stream))
		set_stream(d, stream);
	else
		d->many_streams = true;
}

void draft_say_stream(struct draft *d, intptr_t stream, PyObject *owner)
{
	struct hold *h = hold_of(d);
	PyObject *old;

	if (!h || !d->handle || stream == TL_STREAM_DEFAULT)
		return;
	d->stream_said = true;
	d->many_streams = false;
	set_stream(d, stream);
	old = h->stream_owner;
	h->stream_owner = Py_XNewRef(owner);
	Py_XDECREF(old);
}

void draft_keep_stream(struct draft *d)
{
	if (d->handle)
		tl_draft_set_stream(d->handle, stream_here(d->stream));
}

bool draft_stream_known(const struct draft *d)
{
	return stream_known(d->many_streams);
}

bool stream_known(bool many)
{
	if (!many)
		return true;
	raise_text(
		-EINVAL,
		"the draft was handed to consumers on several streams: name the one whose work on it comes last with stream=");
	return false;
}

/* Returns a reference, or NULL if the draft is going away: it waits for the lock, or the callbacks
 * of its weak references run. */
static struct draft *draft_alive(struct draft *d)
{
#ifdef Py_GIL_DISABLED
	PyObject *alive = NULL;

	if (PyWeakref_GetRef(d->weak, &alive) < 0)
		PyErr_Clear();
	return (struct draft *)alive;
#else
	return Py_REFCNT((PyObject *)d) ? (struct draft *)Py_NewRef(d) : NULL;
#endif
}

void drafts_abort(struct client *c)
{
	struct draft *d = c->drafts;

	while (d) {
		struct draft *alive = hold_of(d) ? draft_alive(d) : NULL;

		if (!alive) {
			d = d->next;
			continue;
		}
		alive->closed = true;
		draft_ended(alive, DRAFT_ABORTED); /* others run, and the list may change */
		Py_DECREF(alive);
		d = c->drafts;
	}
}

struct draft *draft_with_bytes_at(struct client *c, const void *data)
{
	for (struct draft *d = c->drafts; data && d; d = d->next)
		if (hold_of(d) && hold_of(d)->managed->dl_tensor.data == data)
			return draft_alive(d);
	return NULL;
}

const char *draft_hint(const struct client *c, const char *name)
{
	for (const struct draft *d = c->drafts; d; d = d->next) {
		const char *text = PyUnicode_AsUTF8AndSize(d->name, NULL);

		if (text && d->state == DRAFT_OPEN && !strcmp(text, name))
			return "; this client has an open draft of that name, which its commit() publishes";
	}
	return "";
}

void raise_missing(const struct client *c, const char *name, int r)
{
	const char *hint = r == -ENOENT ? draft_hint(c, name) : "";

	if (*hint)
		raise_text(r, "%s%s", tl_last_error(), hint);
	else
		raise_error(r);
}

static struct hold *draft_take(struct draft *d)
{
	struct hold *h = d->doubted ? d->doubted : array_hold((PyObject *)d);

	if (h && d->forks != forks) {
		raise_text(
			-ESTALE,
			"the draft belongs to the process that created it, not to its child after fork(): "
			"the child may fill it, and that process commits it");
		return NULL;
	}
	return h;
}

struct draft_publishing {
	tl_client *client;
	const char *name;
	DLManagedTensorVersioned *tensor;
	tl_put_options options;
	uint64_t *version;
	bool *copied;
};

/* It waits for space if the draft must be copied, since it is a slot of a ring, or the daemon that
 * made it has ended. */
static int draft_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct draft_publishing *p = context;

	(void)had_space;
	p->options.timeout_ns = timeout_ns;
	return tl_publish(p->client, p->name, p->tensor, &p->options, p->copied, p->version);
}

int draft_publish(struct draft *d, PyObject *name, const tl_put_options *options, PyObject *stream,
		  uint64_t *version, bool *copied)
{
	const char *text = draft_take(d) ? name_utf8(name) : NULL;
	struct draft_publishing p = { .name = text, .version = version, .copied = copied };
	DLManagedTensorVersioned **exported;
	struct source s;
	struct hold *h, *doubted;
	int r;

	if (!text)
		return -1;
	draft_say_stream(d, options->stream, stream);
	h = draft_take(d); /* again: what that let go may have run code */
	if (!h || !draft_stream_known(d) || source_of_hold(&s, h))
		return -1;
	if (!client_begin(d->client)) {
		source_end(&s);
		return -1;
	}
	p.client = d->client->client;
	p.options = *options;
	p.tensor = s.versioned;
	exported = exported_of(h);
	if (exported) {
		p.tensor = *exported;
		*exported = NULL; /* the library will consume it */
	}
	doubted = d->doubted;
	d->array.hold = d->doubted = NULL; /* so that another thread cannot commit too */
	r = client_with_space(d->client, draft_attempt, &p, options->timeout_ns);
	if (r < 0)
		raise_error(r); /* before anything else can fail */
	d->doubted = doubted;
	d->array.hold = doubted ? NULL : h;
	if (!exported && (!r || r == -EINPROGRESS)) /* the library has it */
		s.versioned = NULL;
	source_end(&s);
	if (r && exported)
		*exported = p.tensor;
	if (r)
		draft_failed(d, r);
	else
		draft_committed(d, name, version ? *version : 0);
	client_end(d->client); /* which aborts the draft if the client was closed meanwhile */
	return r ? -1 : 0;
}

static PyObject *draft_commit(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *names)
{
	WITH_LOCK;
	struct draft *d = (struct draft *)self;
	PyObject *metadata = NULL, *wait = NULL, *stream = NULL;
	const struct keyword keywords[] = {
		{ "metadata", &metadata }, { "wait", &wait }, { "stream", &stream }, { NULL, NULL }
	};
	tl_put_options options = { .size = sizeof(options) };
	uint64_t version = 0;
	int waits = 1, r;
	Py_buffer bytes;

	if (parse_arguments("commit", args, nargs, names, 0, keywords))
		return NULL;
	if (wait && (waits = PyObject_IsTrue(wait)) < 0)
		return NULL;
	if (parse_stream(stream, &options.stream) ||
	    parse_metadata(metadata, TL_METADATA_MAX, &bytes))
		return NULL;
	options.metadata = bytes.len ? bytes.buf : NULL;
	options.metadata_size = (size_t)bytes.len;
	r = draft_publish(d, d->name, &options, stream, waits ? &version : NULL, NULL);
	PyBuffer_Release(&bytes);
	if (r)
		return NULL;
	if (!waits)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(version);
}

static PyObject *draft_abort(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct draft *d = (struct draft *)self;

	(void)unused;
	if (hold_of(d))
		draft_ended(d, DRAFT_ABORTED);
	Py_RETURN_NONE;
}

/* A client may refer to its drafts. The owner of a stream is not visited: in a circle its finalizer
 * would end the stream before the draft, which still uses it. */
static int draft_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct draft *)self)->client);
	return 0;
}

static int draft_clear(PyObject *self)
{
	WITH_LOCK;
	struct draft *d = (struct draft *)self;

	draft_ended(d, d->state == DRAFT_OPEN ? DRAFT_ABORTED : d->state);
	Py_CLEAR(d->client);
	return 0;
}

static void draft_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self); /* before it waits for the lock: a collection must not find it */
	WITH_LOCK;
	struct draft *d = (struct draft *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);

	draft_ended(d, DRAFT_ABORTED);
	array_deinit(self);
	Py_CLEAR(d->client);
	Py_CLEAR(d->name);
	Py_CLEAR(d->numpy);
#ifdef Py_GIL_DISABLED
	Py_CLEAR(d->weak);
#endif
	end(self);
	Py_DECREF(type);
}

static PyObject *draft_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)args;
	(void)kwargs;
	PyErr_Format(PyExc_TypeError, "%R objects come from Client.create()", type);
	return NULL;
}

static PyObject *get_name(PyObject *self, void *unused)
{
	WITH_LOCK;
	(void)unused;
	return Py_NewRef(((struct draft *)self)->name);
}

static PyObject *get_version(PyObject *self, void *unused)
{
	WITH_LOCK;
	struct draft *d = (struct draft *)self;

	(void)unused;
	if (!d->version)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(d->version);
}

static PyObject *get_stream(PyObject *self, void *unused)
{
	WITH_LOCK;
	(void)unused;
	return stream_number(stream_here(((struct draft *)self)->stream));
}

static int set_stream_attribute(PyObject *self, PyObject *value, void *unused)
{
	WITH_LOCK;
	struct draft *d = (struct draft *)self;
	intptr_t stream;

	(void)unused;
	if (!value || value == Py_None) {
		PyErr_SetString(PyExc_TypeError, "stream must be an int or a stream object");
		return -1;
	}
	if (parse_stream(value, &stream) || !array_hold(self)) /* in this order: it may run code */
		return -1;
	if (!d->handle) {
		raise_text(-EINVAL, "the draft is on the CPU, which has no streams");
		return -1;
	}
	draft_say_stream(d, stream, value);
	return 0;
}

static PyObject *get_state(PyObject *self, void *unused)
{
	WITH_LOCK;
	static const char *const texts[] = { "open", "committed", "aborted", "unknown" };

	(void)unused;
	return PyUnicode_InternFromString(texts[((struct draft *)self)->state]);
}

static PyObject *get_closed(PyObject *self, void *unused)
{
	WITH_LOCK;
	(void)unused;
	return PyBool_FromLong(((struct draft *)self)->closed);
}

/* A child inherits its parent's drafts, and a grandchild does not: touching one is a SIGSEGV there.
 */
bool draft_is_here(PyObject *self)
{
	const struct draft *d = (struct draft *)self;

	if (d->array.hold && hold_on_gpu(d->array.hold))
		return hold_usable(d->array.hold);
	if (forks - d->forks < 2)
		return true;
	PyErr_SetString(
		PyExc_BufferError,
		"the draft belongs to the process that created it: its children after fork() may fill it, "
		"but not their children");
	return false;
}

static int draft_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
	WITH_LOCK;
	view->obj = NULL;
	return draft_is_here(self) ? array_get_buffer(self, view, flags) : -1;
}

static PyObject *draft_dlpack_here(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				   PyObject *names)
{
	WITH_LOCK;
	return draft_is_here(self) ? draft_dlpack(self, args, nargs, names) : NULL;
}

static PyObject *draft_share(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	return draft_is_here(self) ? array_share(self, unused) : NULL;
}

static PyObject *draft_view(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	return draft_is_here(self) ? array_view(self, args) : NULL;
}

/*
 * _array(made=None) is for numpy(). It returns the array that numpy() made before, or else keeps
 * and returns @made. All threads and signal handlers get the same array, because the commit makes
 * only that one read-only.
 */
static PyObject *draft_array(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct draft *d = (struct draft *)self;
	PyObject *made = Py_None, *array, *kept;

	if (!PyArg_ParseTuple(args, "|O", &made) || (made != Py_None && !array_hold(self)))
		return NULL;
	array = d->state == DRAFT_OPEN ? numpy_of(d) : NULL;
	if (array) {
		if (!draft_is_here(self))
			Py_CLEAR(array);
		return array;
	}
	if (made != Py_None) {
		kept = PyWeakref_NewRef(made, NULL);
		if (!kept)
			return NULL;
		Py_XDECREF(d->numpy);
		d->numpy = kept;
	}
	return Py_NewRef(made);
}

static PyMethodDef methods[] = {
	{ "commit", FASTCALL(draft_commit), METH_FASTCALL | METH_KEYWORDS,
	  "commit($self, *, metadata=None, wait=True, stream=None)\n--\n\n"
	  "Publishes the tensor and returns its version, an int from 1. From then on nobody may write to its bytes.\n\n"
	  "metadata: bytes to attach, a str or a dict, at most 1024 bytes. They replace what create() was given; b'' does not.\n"
	  "wait: if False, return None and not the version.\n"
	  "stream: on a GPU, the stream that writes the draft, for which consumers wait: an int as DLPack numbers streams,\n"
	  "    or a stream object of another library. None: the stream that a consumer of the draft named\n"
	  "    (torch.from_dlpack(draft) names PyTorch's current stream), else CUDA's legacy default stream.\n"
	  "ValueError: the draft was committed or aborted before. After a TimeoutError, a DisconnectedError or an Error with\n"
	  "errno EINPROGRESS it may have been published or not: its state is 'unknown', nobody may write to its bytes, and\n"
	  "numpy() and the like raise a ValueError or a BufferError. Only commit() and abort() can still be called; another\n"
	  "commit() publishes the same bytes, as one more version if the first one succeeded." },
	{ "abort", draft_abort, METH_NOARGS,
	  "abort($self)\n--\n\nGives the memory back without publishing it. Does nothing the second time. What a commit may have published,\n"
	  "after which the state is 'unknown', stays published." },
	{ "__dlpack__", FASTCALL(draft_dlpack_here), METH_FASTCALL | METH_KEYWORDS, NULL },
	{ "__dlpack_device__", array_dlpack_device, METH_NOARGS, NULL },
	{ "_array", draft_array, METH_VARARGS, NULL },
	{ "_share", draft_share, METH_NOARGS, NULL },
	{ "_view", draft_view, METH_VARARGS, NULL },
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
	{ "name", get_name, NULL, "The name under which it will be published, or was published.",
	  NULL },
	{ "version", get_version, NULL, "The version that was published; None before the commit.",
	  NULL },
	{ "stream", get_stream, set_stream_attribute,
	  "On a GPU, the stream that writes the draft: an int, or None if nobody has named one. It can be set, also to a\n"
	  "stream object, which the draft and its views keep. It is 1 for the per-thread stream of another thread, for which\n"
	  "the legacy stream waits.",
	  NULL },
	{ "state", get_state, NULL,
	  "'open', 'committed', 'aborted', or 'unknown' after a commit that may have succeeded.",
	  NULL },
	{ "_dtype_tuple", array_get_dtype_tuple, NULL, NULL, NULL },
	{ "_address", array_get_address, NULL, NULL, NULL },
	{ "_closed", get_closed, NULL, NULL, NULL },
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, draft_refuse_new },
	{ Py_tp_dealloc, draft_dealloc },
	{ Py_tp_traverse, draft_traverse },
	{ Py_tp_clear, draft_clear },
	{ Py_tp_methods, methods },
	{ Py_tp_getset, getters },
	{ Py_bf_getbuffer, draft_get_buffer },
	{ Py_bf_releasebuffer, array_release_buffer },
	{ 0, NULL },
};

static PyType_Spec spec = {
	.name = "tensorlease._core.Draft",
	.basicsize = sizeof(struct draft),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.slots = slots,
};

int draft_init(PyObject *module)
{
	draft_base = (PyTypeObject *)PyType_FromSpec(&spec);
	if (!draft_base)
		return -1;
	allocate = (allocfunc)PyType_GetSlot(draft_base, Py_tp_alloc);
	return dlpack_init(draft_base) ||
			       PyModule_AddObjectRef(module, "Draft", (PyObject *)draft_base)
		       ? -1
		       : 0;
}
