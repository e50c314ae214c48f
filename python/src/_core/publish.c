/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing: put(), publish() and create(). They wait for space in slices. */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "cuda.h"
#include "draft.h"
#include "lock.h"
#include "source.h"
#include "wait.h"

const char put_doc[] =
	"put($self, name, array, *, metadata=None, timeout=None, wait=True, stream=None, ttl=None, owner_bound=False,\n"
	"    evictable=False, ring=None, evict_idle=0, threads=None)\n--\n\n"
	"Publishes a copy of array under name and returns its version, an int from 1.\n\n"
	"array: an object in main memory with __dlpack__, the buffer protocol or __array_interface__, of any strides:\n"
	"    NumPy, PyTorch, JAX, bytes, array.array, ... Or a contiguous object on a GPU with __dlpack__ or\n"
	"    __cuda_array_interface__; its copy lies on the same GPU. Or numbers: one, or nested lists of them, of which\n"
	"    numpy.asarray() makes an array.\n"
	"metadata: what to attach, at most 1024 bytes: bytes; a str, as UTF-8; or a dict, as JSON.\n"
	"timeout: seconds to wait for space. None: do not wait.\n"
	"wait: if False, return None and not the version.\n"
	"stream: on a GPU, the stream on which the copy is queued: an int as DLPack numbers streams, or a stream object\n"
	"    of another library. Queue the next write to array there too. None: put() returns when the copy is made.\n"
	"ttl: seconds after which the name is deleted, unless it was published anew before. None: never.\n"
	"owner_bound: whether the name is deleted when this client's connection ends.\n"
	"evictable: whether the daemon may delete the name when it needs space and nobody holds the tensor, the least\n"
	"    recently used first. Holders of a tensor keep it in all three cases.\n"
	"ring: who publishes the same dtype and shape under one name again and again may have a ring: memory for\n"
	"    several tensors at once, among which it publishes without asking the daemon. None and 'auto' begin one at\n"
	"    the third equal publish of at most 4 MiB, and so does True. An int begins one of so many tensors with this\n"
	"    one, at most 64, and at least 3: 1 and 2 mean 3. False begins none. Consumers see no difference. There is a\n"
	"    ring on the CPU only, without ttl, owner_bound and evictable, and with at most 24 bytes of metadata and 6\n"
	"    dimensions; otherwise the daemon is asked each time.\n"
	"evict_idle: seconds. Space for it is made of evictable tensors that nobody got for so long, and of no others.\n"
	"    0: of any, the least recently used first.\n"
	"threads: how many copy an array on the CPU, at most 64. None: one for each 4 MiB, as many as this process may\n"
	"    use processors, and 4 at most.\n"
	"NoSpaceError: it does not fit. PermissionDeniedError: the name belongs to another user. BufferError: DLPack\n"
	"has no type for the elements. UnsupportedError: the array is on another device, or strided on a GPU.\n"
	"NoDeviceError: CUDA cannot be used here. TypeError: it is not an array.";

enum { THREADS_MAX = 64 };

struct putting {
	PyObject *called; /* a str */
	const char *name; /* its text */
	PyObject *array;
	PyObject *stream; /* as it was named, or NULL */
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

/* Seconds, rounded up: what was used within them stays. */
static int parse_idle(PyObject *o, uint32_t *seconds)
{
	int64_t ns = 0;

	if (o && parse_seconds("evict_idle", o, &ns))
		return -1;
	*seconds = ns < 0 || ns / NS_PER_SEC >= UINT32_MAX
			   ? UINT32_MAX
			   : (uint32_t)((ns + NS_PER_SEC - 1) / NS_PER_SEC);
	return 0;
}

static int parse_threads(PyObject *o, uint32_t *threads)
{
	long n;

	if (!o || o == Py_None)
		return 0;
	n = PyLong_Check(o) ? PyLong_AsLong(o) : 0;
	if (n == -1 && PyErr_Occurred())
		PyErr_Clear();
	if (n < 1 || n > THREADS_MAX) {
		PyErr_Format(PyLong_Check(o) ? PyExc_ValueError : PyExc_TypeError,
			     "threads must be an int from 1 to %d or None, not %R", THREADS_MAX, o);
		return -1;
	}
	*threads = (uint32_t)n;
	return 0;
}

static int parse_putting(bool publish, struct putting *p, PyObject *const *args, Py_ssize_t nargs,
			 PyObject *names)
{
	PyObject *metadata = NULL, *timeout = NULL, *wait = NULL;
	PyObject *sealed = NULL, *staging = NULL, *no_copy = NULL;
	PyObject *ttl = NULL, *bound = NULL, *evictable = NULL, *ring = NULL, *idle = NULL;
	PyObject *threads = NULL;
	const struct keyword keywords[] = {
		{ "name", &p->called },
		{ publish ? "tensor" : "array", &p->array },
		{ "metadata", &metadata },
		{ "timeout", &timeout },
		{ "wait", &wait },
		{ "stream", &p->stream },
		{ "ttl", &ttl },
		{ "owner_bound", &bound },
		{ "evictable", &evictable },
		{ "ring", &ring },
		{ "evict_idle", &idle },
		{ "threads", &threads },
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
	    parse_stream(p->stream, &p->options.stream) ||
	    parse_lifetime(ttl, bound, evictable, &p->options.ttl_ns, &p->options.lifetime) ||
	    parse_ring(ring, &p->options.ring) || parse_idle(idle, &p->options.evict_idle_s) ||
	    parse_threads(threads, &p->options.threads) ||
	    parse_flag(sealed, TL_PUBLISH_SEALED, &p->options.flags) ||
	    parse_flag(staging, TL_PUBLISH_STAGING, &p->options.flags) ||
	    parse_flag(no_copy, TL_PUBLISH_NO_COPY, &p->options.flags))
		return -1;
	if (wait && (p->waits = PyObject_IsTrue(wait)) < 0)
		return -1;
	if (parse_metadata(metadata, TL_METADATA_MAX, &p->metadata))
		return -1;
	p->options.metadata = p->metadata.len ? p->metadata.buf : NULL;
	p->options.metadata_size = (size_t)p->metadata.len;
	return 0;
}

/* A copy on a GPU is queued on a stream. A caller that names no stream could not know when the copy
 * is made, so the call must not return before that. */
static void copy_options(tl_put_options *o, const struct source *s)
{
	if (source_on_gpu(s) && o->stream == TL_STREAM_DEFAULT)
		o->flags |= TL_PUBLISH_SEALED;
	o->stream = s->stream;
}

static int put_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct putting *p = context;

	(void)had_space;
	p->options.timeout_ns = timeout_ns;
	return tl_put(p->client, p->name, &p->source->tensor, &p->options,
		      p->waits ? &p->version : NULL);
}

PyObject *client_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct putting p;
	struct source s;
	int r = -1;

	if (parse_putting(false, &p, args, nargs, names))
		return NULL;
	if (source_begin(&s, p.array, &p.options.stream)) {
		raise_again_with_name(p.called);
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

static int publish_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct putting *p = context;

	(void)had_space;
	p->options.timeout_ns = timeout_ns;
	return tl_publish(p->client, p->name, p->tensor, &p->options, &p->copied,
			  p->waits ? &p->version : NULL);
}

/* Notes @r on the draft whose memory was to be published: before client_end(), which aborts it if
 * the client was closed meanwhile. */
static void source_done(struct client *c, const struct putting *p, const struct source *s, int r)
{
	struct draft *draft = draft_with_bytes_at(c, s->tensor.data);

	if (draft && r)
		draft_failed(draft, r);
	else if (draft && !p->copied)
		draft_committed(draft, p->called, p->version);
	Py_XDECREF((PyObject *)draft);
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
	source_done(c, p, s, r);
	if (r && again)
		again->deleter(again);
	client_end(c);
	return r ? -1 : 0;
}

/* Publishes a source on a GPU, which the library then owns. It calls the source's deleter when no
 * client holds the publication. */
static int publish_gpu(struct client *c, struct putting *p, struct source *s)
{
	struct draft *draft;
	int r;

	if (source_own(s) || !client_begin(c))
		return -1;
	draft = draft_with_bytes_at(c, s->tensor.data);
	if (draft)
		draft_say_stream(draft, p->options.stream, p->stream);
	if (p->options.flags & TL_PUBLISH_STAGING) /* with this flag it may be copied */
		copy_options(&p->options, s);
	p->options.stream = s->stream;
	p->client = c->client;
	p->tensor = s->versioned;
	r = client_with_space(c, publish_attempt, p, p->timeout_ns);
	if (r < 0)
		raise_error(r);
	if (!r || r == -EINPROGRESS) /* it may be published, and the library keeps it */
		s->versioned = NULL;
	else if (draft)
		draft_keep_stream(draft);
	source_done(c, p, s, r);
	Py_XDECREF((PyObject *)draft);
	client_end(c);
	return r ? -1 : 0;
}

static bool is_numpy(PyObject *array)
{
	PyObject *numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
	PyObject *type = numpy ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
	bool is = type && PyType_Check(type) && PyObject_TypeCheck(array, (PyTypeObject *)type);

	PyErr_Clear();
	Py_XDECREF(type);
	return is;
}

PyObject *client_publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct putting p;
	struct source s;
	int r;

	if (parse_putting(true, &p, args, nargs, names))
		return NULL;
	if (is_draft(p.array) && ((struct draft *)p.array)->client != c) {
		raise_text(-EINVAL, "the draft is another client's");
		r = -1;
	} else if (is_draft(p.array)) {
		p.options.timeout_ns = p.timeout_ns;
		r = draft_publish((struct draft *)p.array, p.called, &p.options, p.stream,
				  p.waits ? &p.version : NULL, &p.copied);
	} else {
		r = source_begin(&s, p.array, &p.options.stream);
		if (r)
			raise_again_with_name(p.called);
		if (!r) {
			r = source_on_gpu(&s) ? publish_gpu(c, &p, &s) : publish_source(c, &p, &s);
			/* The draft's own array is read-only by now, and this may be another. */
			if (!r && !p.copied && is_numpy(p.array))
				numpy_seal(p.array);
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

static int create_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct creating *w = context;
	int r;

	(void)had_space;
	w->spec.timeout_ns = timeout_ns;
	r = tl_create(w->client, w->name, &w->spec, &w->draft);
	if (r || !w->metadata->len)
		return r;
	return tl_draft_set_metadata(w->draft, w->metadata->buf, (size_t)w->metadata->len);
}

PyObject *client_create(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	PyObject *name, *shape, *metadata, *timeout, *ttl, *bound, *evictable, *ring, *idle, *draft;
	int own_pages;
	int64_t sizes[TL_NDIM_MAX], timeout_ns;
	struct creating w = { .spec = { .size = sizeof(w.spec), .shape = sizes } };
	int code, bits, lanes, gpu, r;
	Py_buffer bytes;

	if (!PyArg_ParseTuple(args, "OO!(iii)KOOi(OOOO)Op", &name, &PyTuple_Type, &shape, &code,
			      &bits, &lanes, &w.spec.dlpack_flags, &metadata, &timeout, &gpu, &ttl,
			      &bound, &evictable, &idle, &ring, &own_pages) ||
	    parse_lifetime(ttl, bound, evictable, &w.spec.ttl_ns, &w.spec.lifetime) ||
	    parse_idle(idle, &w.spec.evict_idle_s) || parse_ring(ring, &w.spec.ring))
		return NULL;
	w.spec.flags = own_pages ? TL_CREATE_OWN_PAGES : 0;
	w.name = name_utf8(name);
	if (!w.name || parse_seconds("timeout", timeout, &timeout_ns))
		return NULL;
	if (parse_sizes(shape, sizes, &w.spec.ndim))
		return NULL;
	w.spec.dtype = (DLDataType){ (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
	if (gpu >= 0)
		w.spec.device = (DLDevice){ kDLCUDA, gpu };
	if (parse_metadata(metadata, TL_METADATA_MAX, &bytes))
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
	else if (!r && c->closing)
		r = wait_closed("a create");
	if (r)
		abort_py(w.draft);
	draft = r ? NULL : draft_from(c, name, w.draft); /* client_end() may close the client */
	client_end(c);
	PyBuffer_Release(&bytes);
	return draft;
}
