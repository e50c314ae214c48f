/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: publishing many arrays in one step, and getting or copying many tensors as of one
 * moment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "cuda.h"
#include "draft.h"
#include "lock.h"
#include "source.h"
#include "transfer/transfer.h"
#include "wait.h"

/* ---- Putting ---- */

struct part {
	struct source source;
	Py_buffer metadata;
};

struct putting {
	tl_client *client;
	tl_group_item *items;
	const DLTensor **sources;
	struct part *parts;
	size_t count;	/* of the parts that have begun */
	size_t deletes; /* number of names behind them, which are deleted */
	struct copies copies;
	int64_t ttl_ns;
	uint32_t lifetime;
	char why[FILE_ERROR_TEXT];
};

/* Keeps @array and @metadata until putting_deinit(). */
static int putting_add(struct putting *p, PyObject *name, PyObject *array, PyObject *metadata)
{
	tl_group_item *item = &p->items[p->count];
	struct part *part = &p->parts[p->count];
	const char *text = name_utf8(name);

	if (!text)
		return -1;
	if (source_begin(&part->source, array, &p->copies.named)) {
		raise_again_with_name(name);
		return -1;
	}
	if (parse_metadata(metadata, TL_METADATA_MAX, &part->metadata)) {
		raise_again_with_name(name);
		source_end(&part->source);
		return -1;
	}
	p->sources[p->count++] = &part->source.tensor;
	if (copies_add(&p->copies, &part->source)) {
		raise_again_with_name(name);
		return -1;
	}
	*item = (tl_group_item){
		.name = text,
		.shape = part->source.tensor.shape,
		.ndim = part->source.tensor.ndim,
		.dtype = part->source.tensor.dtype,
		.dlpack_flags = part->source.flags,
		.metadata = part->metadata.len ? part->metadata.buf : NULL,
		.metadata_size = (size_t)part->metadata.len,
		.ttl_ns = p->ttl_ns,
		.lifetime = p->lifetime,
	};
	return 0;
}

static void putting_deinit(struct putting *p)
{
	for (size_t i = 0; i < p->count; i++) {
		source_end(&p->parts[i].source);
		PyBuffer_Release(&p->parts[i].metadata);
	}
	PyMem_Free(p->parts);
	PyMem_Free(p->sources);
	PyMem_Free(p->items);
}

/* Adds names that are deleted in the same step. */
static int putting_delete(struct putting *p, PyObject *names)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
		const char *text = name_utf8(PyTuple_GetItem(names, i));

		if (!text)
			return -1;
		p->items[p->count + p->deletes++] = (tl_group_item){ .name = text,
								     .flags = TL_GROUP_DELETE };
	}
	return 0;
}

/* @deletes: NULL, or a tuple of names. */
static int putting_init(struct putting *p, PyObject *names, PyObject *arrays, PyObject *metadata,
			PyObject *deletes)
{
	Py_ssize_t n = PyTuple_Size(names), more = deletes ? PyTuple_Size(deletes) : 0;

	if (PyTuple_Size(arrays) != n || PyTuple_Size(metadata) != n) {
		PyErr_SetString(PyExc_ValueError, "the tuples must have the same length");
		return -1;
	}
	p->items = PyMem_Calloc((size_t)(n + more) + 1, sizeof(*p->items));
	p->sources = PyMem_Calloc((size_t)(n + more) + 1, sizeof(DLTensor *));
	p->parts = PyMem_Calloc((size_t)n + 1, sizeof(*p->parts));
	if (!p->items || !p->sources || !p->parts) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (putting_add(p, PyTuple_GetItem(names, i), PyTuple_GetItem(arrays, i),
				PyTuple_GetItem(metadata, i)))
			return -1;
	return deletes ? putting_delete(p, deletes) : 0;
}

static int putting_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct putting *p = context;

	return transfer_put(p->client, p->items, p->sources, p->count + p->deletes,
			    p->copies.stream, p->copies.sealed, timeout_ns, had_space, p->why);
}

/*
 * _put_many(names, arrays, metadata, timeout, (ttl, owner_bound, evictable), stream, deletes);
 * three tuples of the same length, which no code that an array runs can change, and one of names
 */
PyObject *many_put(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	PyObject *names, *arrays, *metadata, *timeout, *ttl, *bound, *evictable, *stream, *deletes;
	struct putting p = { 0 };
	int64_t timeout_ns;
	int r = -1;

	if (!PyArg_ParseTuple(args, "O!O!O!O(OOO)OO!", &PyTuple_Type, &names, &PyTuple_Type,
			      &arrays, &PyTuple_Type, &metadata, &timeout, &ttl, &bound, &evictable,
			      &stream, &PyTuple_Type, &deletes) ||
	    parse_stream(stream, &p.copies.named) ||
	    parse_seconds("timeout", timeout, &timeout_ns) ||
	    parse_lifetime(ttl, bound, evictable, &p.ttl_ns, &p.lifetime))
		return NULL;
	if (!putting_init(&p, names, arrays, metadata, deletes) && client_begin(c)) {
		p.client = c->client;
		r = client_with_space(c, putting_attempt, &p, timeout_ns);
		if (r < 0 && *p.why)
			raise_text(r, "%s", p.why);
		else if (r < 0)
			raise_error(r);
		client_end(c);
	}
	putting_deinit(&p);
	if (r)
		return NULL;
	Py_RETURN_NONE;
}

/* ---- Handing over ---- */

/* The arguments of tl_publish_many(). @put has the arrays. */
struct handing {
	struct putting put;
	const char **names;
	DLManagedTensorVersioned *copied_from; /* the tensors on the CPU, which stay ours */
	DLManagedTensorVersioned **tensors;
	tl_put_options options;
	size_t copied;
};

static int handing_init(struct handing *h, PyObject *names, PyObject *arrays, PyObject *metadata)
{
	size_t n = (size_t)PyTuple_Size(names) + 1;

	h->names = PyMem_Calloc(n, sizeof(*h->names));
	h->copied_from = PyMem_Calloc(n, sizeof(*h->copied_from));
	h->tensors = PyMem_Calloc(n, sizeof(DLManagedTensorVersioned *));
	if (!h->names || !h->copied_from || !h->tensors) {
		PyErr_NoMemory();
		return -1;
	}
	if (putting_init(&h->put, names, arrays, metadata, NULL))
		return -1;
	for (size_t i = 0; i < h->put.count; i++) {
		struct source *s = &h->put.parts[i].source;

		h->names[i] = h->put.items[i].name;
		h->copied_from[i] = (DLManagedTensorVersioned){
			.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
			.flags = s->flags,
			.dl_tensor = s->tensor,
		};
		if (source_on_gpu(s) && source_own(s))
			return -1;
		h->tensors[i] = source_on_gpu(s) ? s->versioned : &h->copied_from[i];
	}
	return 0;
}

static void handing_deinit(struct handing *h)
{
	putting_deinit(&h->put);
	PyMem_Free(h->tensors);
	PyMem_Free(h->copied_from);
	PyMem_Free(h->names);
}

static int handing_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct handing *h = context;

	(void)had_space;
	h->options.timeout_ns = timeout_ns;
	return tl_publish_many(h->put.client, h->names, h->tensors, h->put.count, &h->options,
			       &h->copied);
}

/* Returns a reference to the open draft that is @array, or whose memory it has, or NULL. */
static struct draft *draft_of(struct client *c, PyObject *array, const struct source *s)
{
	if (!is_draft(array))
		return draft_with_bytes_at(c, s->tensor.data);
	return ((struct draft *)array)->array.hold ? (struct draft *)Py_NewRef(array) : NULL;
}

/* As publish() does: a draft is published by its own client, and on the stream that is named. */
static int handing_drafts(struct handing *h, struct client *c, PyObject *names, PyObject *arrays,
			  PyObject *stream)
{
	for (size_t i = 0; i < h->put.count; i++) {
		const struct source *s = &h->put.parts[i].source;
		PyObject *array = PyTuple_GetItem(arrays, (Py_ssize_t)i);
		struct draft *draft;

		if (!source_on_gpu(s))
			continue;
		if (is_draft(array) && ((struct draft *)array)->client != c) {
			raise_text(-EINVAL, "the draft is another client's");
			raise_again_with_name(PyTuple_GetItem(names, (Py_ssize_t)i));
			return -1;
		}
		draft = draft_of(c, array, s);
		if (draft)
			draft_say_stream(draft, h->put.copies.named, stream);
		Py_XDECREF((PyObject *)draft);
	}
	return 0;
}

/*
 * Drops the tensors on GPUs that the library has taken over: they are published, or may be. Ends
 * the drafts whose memory is published.
 */
static void handing_done(struct handing *h, struct client *c, PyObject *names, PyObject *arrays,
			 int r)
{
	if (r && r != -EINPROGRESS)
		return;
	for (size_t i = 0; i < h->put.count; i++) {
		struct source *s = &h->put.parts[i].source;
		PyObject *array = PyTuple_GetItem(arrays, (Py_ssize_t)i);
		struct draft *draft;

		if (!source_on_gpu(s))
			continue;
		s->versioned = NULL;
		draft = draft_of(c, array, s);
		if (draft && r)
			draft_failed(draft, r);
		else if (draft)
			draft_committed(draft, PyTuple_GetItem(names, (Py_ssize_t)i), 0);
		Py_XDECREF((PyObject *)draft);
	}
}

PyObject *many_publish(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct handing h = { .options = { .size = sizeof(h.options) } };
	PyObject *names, *arrays, *metadata, *timeout, *ttl, *bound, *evictable, *stream, *sealed;
	int64_t timeout_ns;
	int r = -1, seals;

	if (!PyArg_ParseTuple(args, "O!O!O!O(OOO)OO", &PyTuple_Type, &names, &PyTuple_Type, &arrays,
			      &PyTuple_Type, &metadata, &timeout, &ttl, &bound, &evictable, &stream,
			      &sealed) ||
	    parse_stream(stream, &h.put.copies.named) ||
	    parse_seconds("timeout", timeout, &timeout_ns) ||
	    parse_lifetime(ttl, bound, evictable, &h.options.ttl_ns, &h.options.lifetime) ||
	    (seals = PyObject_IsTrue(sealed)) < 0)
		return NULL;
	if (!handing_init(&h, names, arrays, metadata) &&
	    !handing_drafts(&h, c, names, arrays, stream) && client_begin(c)) {
		h.put.client = c->client;
		h.options.stream = h.put.copies.on_gpu ? h.put.copies.stream : h.put.copies.named;
		h.options.flags = seals ? TL_PUBLISH_SEALED : 0;
		if (h.put.count) { /* all have the same metadata */
			h.options.metadata = h.put.items[0].metadata;
			h.options.metadata_size = h.put.items[0].metadata_size;
		}
		r = client_with_space(c, handing_attempt, &h, timeout_ns);
		if (r < 0)
			raise_error(r);
		handing_done(&h, c, names, arrays, r);
		client_end(c); /* which aborts what is still a draft if the client was closed */
	}
	handing_deinit(&h);
	return r ? NULL : PyLong_FromSize_t(h.copied);
}

/* ---- Getting by name ---- */

struct getting {
	tl_client *client;
	const char **names;
	size_t count;
	tl_get_options options;
	DLManagedTensorVersioned **tensors;
	const tl_gather_out *outs; /* NULL: the tensors are wanted, not copies of them */
	size_t nouts;
	struct wait wait; /* for the first name that is missing */
};

static void find_missing(struct getting *g)
{
	tl_info info = { .size = sizeof(info) };

	g->wait.item = (tl_wait_item){ .name = g->names[0] }; /* if all names have come meanwhile */
	for (size_t i = 0; i < g->count; i++) {
		int r = tl_stat(g->client, g->names[i], &info);

		if (!r && !info.lost)
			continue;
		g->wait.item.name = g->names[i];
		g->wait.item.newer_than = r ? 0 : info.version;
		return;
	}
}

static int many_look(void *context)
{
	struct getting *g = context;
	int r = g->outs ? tl_gather(g->client, g->names, g->count, g->outs, g->nouts, NULL)
			: tl_get_many(g->client, g->names, g->count, &g->options, g->tensors);

	if (r == -ENOENT || r == -ENODATA)
		find_missing(g);
	return r;
}

/* Takes the tensors of @g over. */
static PyObject *tensor_list(const struct client *c, struct getting *g)
{
	PyObject *list = PyList_New((Py_ssize_t)g->count);
	size_t n = 0;

	while (list && n < g->count) {
		PyObject *tensor = tensor_got(c, g->tensors[n]);

		g->tensors[n] = NULL;
		if (!tensor)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, (Py_ssize_t)n++, tensor);
	}
	for (; n < g->count; n++)
		if (g->tensors[n])
			g->tensors[n]->deleter(g->tensors[n]);
	return list;
}

static int many_take(struct client *c, struct getting *g, int64_t timeout_ns)
{
	int64_t began = now_ns();
	int r;

	g->client = c->client;
	g->wait = (struct wait){ .item = { .name = g->names[0] }, .look = many_look, .context = g };
	Py_BEGIN_ALLOW_THREADS;
	r = many_look(g);
	Py_END_ALLOW_THREADS;
	if (!r)
		return 0;
	if (!timeout_ns || (!worth_waiting(r) && r != -ENODATA)) {
		raise_error(r);
		return -1;
	}
	r = client_wait(c, &g->wait, timeout_ns);
	if (r > 0 && g->wait.item.newer_than) {
		raise_text(-ENODATA, "'%s' is lost: its GPU memory ended with its producer",
			   g->wait.item.name);
		return -1;
	}
	return r > 0 ? wait_late(c, g->wait.item.name, 0, timeout_ns, began) : r;
}

static int getting_init(struct getting *g, PyObject *names)
{
	Py_ssize_t n = PyTuple_Size(names);

	g->names = PyMem_Calloc((size_t)n + 1, sizeof(*g->names));
	g->tensors = PyMem_Calloc((size_t)n + 1, sizeof(DLManagedTensorVersioned *));
	if (!g->names || !g->tensors) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		g->names[i] = name_utf8(PyTuple_GetItem(names, i));
		if (!g->names[i])
			return -1;
	}
	g->count = (size_t)n;
	return 0;
}

static void getting_deinit(struct getting *g)
{
	PyMem_Free(g->tensors);
	PyMem_Free(g->names);
}

/* _get_many(names: tuple, timeout, mode, device or None) -> list of Tensors */
PyObject *many_get(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct getting g = { .options = { .size = sizeof(g.options), .stream = TL_STREAM_NONE } };
	PyObject *names, *timeout, *mode, *device, *list = NULL;
	int64_t timeout_ns;

	if (!PyArg_ParseTuple(args, "O!OOO", &PyTuple_Type, &names, &timeout, &mode, &device) ||
	    parse_seconds("timeout", timeout, &timeout_ns) || parse_mode(mode, &g.options.mode) ||
	    parse_target(device, &g.options))
		return NULL;
	if (!getting_init(&g, names) && client_begin(c)) {
		int r = many_take(c, &g, timeout_ns);

		client_end(c);
		if (!r)
			list = tensor_list(c, &g);
	}
	getting_deinit(&g);
	return list;
}

/* ---- Gathering ---- */

struct gathering {
	struct getting get;
	tl_gather_out *outs;
	struct source *sources;
	Py_buffer *offsets;
	size_t begun; /* sources that have begun */
	size_t noffsets;
};

static int gathering_offsets(struct gathering *g, PyObject *offsets, tl_gather_out *out)
{
	Py_buffer *view = &g->offsets[g->noffsets];

	if (offsets == Py_None)
		return 0;
	if (PyObject_GetBuffer(offsets, view, PyBUF_C_CONTIGUOUS))
		return -1;
	g->noffsets++;
	if ((size_t)view->len != g->get.count * sizeof(uint64_t)) {
		PyErr_Format(PyExc_ValueError,
			     "there are %zd bytes of offsets for %zu tensors, of 8 bytes each",
			     view->len, g->get.count);
		return -1;
	}
	out->offsets = view->buf;
	return 0;
}

static int gathering_add(struct gathering *g, PyObject *array, PyObject *offsets)
{
	struct source *s = &g->sources[g->begun];
	tl_gather_out *out = &g->outs[g->begun];

	if (source_begin(s, array, NULL))
		return -1;
	g->begun++;
	out->tensor = &s->tensor;
	if (!s->writable) {
		PyErr_SetString(PyExc_ValueError, "the array to gather into is read-only");
		return -1;
	}
	return gathering_offsets(g, offsets, out);
}

static int gathering_init(struct gathering *g, PyObject *names, PyObject *arrays, PyObject *offsets)
{
	Py_ssize_t n = PyTuple_Size(arrays);

	if (PyTuple_Size(offsets) != n) {
		PyErr_SetString(PyExc_ValueError, "the tuples must have the same length");
		return -1;
	}
	g->outs = PyMem_Calloc((size_t)n + 1, sizeof(*g->outs));
	g->sources = PyMem_Calloc((size_t)n + 1, sizeof(*g->sources));
	g->offsets = PyMem_Calloc((size_t)n + 1, sizeof(*g->offsets));
	if (!g->outs || !g->sources || !g->offsets) {
		PyErr_NoMemory();
		return -1;
	}
	if (getting_init(&g->get, names))
		return -1;
	for (Py_ssize_t i = 0; i < n; i++)
		if (gathering_add(g, PyTuple_GetItem(arrays, i), PyTuple_GetItem(offsets, i)))
			return -1;
	g->get.outs = g->outs;
	g->get.nouts = (size_t)n;
	return 0;
}

static void gathering_deinit(struct gathering *g)
{
	for (size_t i = 0; i < g->begun; i++)
		source_end(&g->sources[i]);
	for (size_t i = 0; i < g->noffsets; i++)
		PyBuffer_Release(&g->offsets[i]);
	getting_deinit(&g->get);
	PyMem_Free(g->offsets);
	PyMem_Free(g->sources);
	PyMem_Free(g->outs);
}

/* _gather(names: tuple, arrays: tuple, offsets: tuple of None and arrays of uint64, timeout) */
PyObject *many_gather(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct gathering g = { 0 };
	PyObject *names, *arrays, *offsets, *timeout;
	int64_t timeout_ns;
	int r = -1;

	if (!PyArg_ParseTuple(args, "O!O!O!O", &PyTuple_Type, &names, &PyTuple_Type, &arrays,
			      &PyTuple_Type, &offsets, &timeout) ||
	    parse_seconds("timeout", timeout, &timeout_ns))
		return NULL;
	if (!gathering_init(&g, names, arrays, offsets) && client_begin(c)) {
		r = many_take(c, &g.get, timeout_ns);
		client_end(c);
	}
	gathering_deinit(&g);
	if (r)
		return NULL;
	Py_RETURN_NONE;
}

/* ---- Getting by prefix ---- */

struct getting_all {
	tl_client *client;
	const char *prefix;
	tl_get_options options;
	struct snapshot found;
	char why[FILE_ERROR_TEXT];
};

static int all_look(void *context)
{
	struct getting_all *g = context;
	int r = snapshot_get(&g->found, g->client, g->prefix, &g->options, g->why);

	if (r == -EBUSY)
		return -EAGAIN;
	return !r && !g->found.count ? -ENOENT : r;
}

/* Takes the tensors of @found over. */
static PyObject *tensor_dict(const struct client *c, struct snapshot *found)
{
	PyObject *dict = PyDict_New();

	for (size_t i = 0; dict && i < found->count; i++) {
		PyObject *name = PyUnicode_FromString(found->names[i]);
		PyObject *tensor = tensor_got(c, found->tensors[i]);

		found->tensors[i] = NULL;
		if (!name || !tensor || PyDict_SetItem(dict, name, tensor))
			Py_CLEAR(dict);
		Py_XDECREF(name);
		Py_XDECREF(tensor);
	}
	snapshot_deinit(found);
	return dict;
}

/* Raises the exception for the last attempt, which failed with @r. */
static int all_failed(struct client *c, const struct getting_all *g, int r, int64_t timeout_ns,
		      int64_t began_ns)
{
	if (r == -EAGAIN)
		raise_text(timeout_ns ? -ETIMEDOUT : -EBUSY, "%s", g->why);
	else if (r == -ENOENT && timeout_ns)
		return wait_late_prefix(c, g->prefix, timeout_ns, began_ns);
	else if (r == -ENOENT)
		raise_text(-ENOENT, "there is no tensor below '%s'", g->prefix);
	else if (*g->why)
		raise_text(r, "%s", g->why);
	else
		raise_error(r);
	return -1;
}

static int all_take(struct client *c, struct getting_all *g, int64_t timeout_ns)
{
	const struct wait wait = { .item = { .name = g->prefix, .flags = TL_WAIT_PREFIX },
				   .look = all_look,
				   .context = g,
				   .why = g->why };
	int64_t began = now_ns();
	int r;

	g->client = c->client;
	Py_BEGIN_ALLOW_THREADS;
	r = all_look(g);
	Py_END_ALLOW_THREADS;
	if (!r)
		return 0;
	if (!timeout_ns || !worth_waiting(r))
		return all_failed(c, g, r, timeout_ns, began);
	*g->why = '\0';
	r = client_wait(c, &wait, timeout_ns);
	return r > 0 ? all_failed(c, g, *g->why ? -EAGAIN : -ENOENT, timeout_ns, began) : r;
}

/* _get_all(prefix, timeout, mode, device or None) -> dict of names and Tensors */
PyObject *many_get_all(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	PyObject *prefix, *timeout, *mode, *device;
	struct getting_all g = { .options = { .size = sizeof(g.options),
					      .stream = TL_STREAM_NONE } };
	int64_t timeout_ns;
	int r;

	if (!PyArg_ParseTuple(args, "OOOO", &prefix, &timeout, &mode, &device) ||
	    parse_seconds("timeout", timeout, &timeout_ns) || parse_mode(mode, &g.options.mode) ||
	    parse_target(device, &g.options))
		return NULL;
	g.prefix = text_utf8("prefix", prefix);
	if (!g.prefix || !client_begin(c))
		return NULL;
	r = all_take(c, &g, timeout_ns);
	client_end(c);
	return r ? NULL : tensor_dict(c, &g.found);
}
