/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: publishing many arrays in one step, and getting many tensors as of one moment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "many.h"
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
	size_t count; /* of the parts that have begun */
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
	if (source_begin(&part->source, array, NULL)) {
		raise_again_with_name(name);
		return -1;
	}
	if (parse_metadata(metadata, &part->metadata)) {
		raise_again_with_name(name);
		source_end(&part->source);
		return -1;
	}
	p->sources[p->count++] = &part->source.tensor;
	*item = (tl_group_item){
		.name = text,
		.shape = part->source.tensor.shape,
		.ndim = part->source.tensor.ndim,
		.dtype = part->source.tensor.dtype,
		.dlpack_flags = part->source.flags,
		.metadata = part->metadata.len ? part->metadata.buf : NULL,
		.metadata_size = (size_t)part->metadata.len,
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

static int putting_init(struct putting *p, PyObject *names, PyObject *arrays, PyObject *metadata)
{
	Py_ssize_t n = PyList_Size(names);

	if (PyList_Size(arrays) != n || PyList_Size(metadata) != n) {
		PyErr_SetString(PyExc_ValueError, "the lists must have the same length");
		return -1;
	}
	p->items = PyMem_Calloc((size_t)n + 1, sizeof(*p->items));
	p->sources = PyMem_Calloc((size_t)n + 1, sizeof(DLTensor *));
	p->parts = PyMem_Calloc((size_t)n + 1, sizeof(*p->parts));
	if (!p->items || !p->sources || !p->parts) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (putting_add(p, PyList_GetItem(names, i), PyList_GetItem(arrays, i),
				PyList_GetItem(metadata, i)))
			return -1;
	return 0;
}

static int putting_attempt(void *context, int64_t timeout_ns)
{
	struct putting *p = context;

	return transfer_put(p->client, p->items, p->sources, p->count, timeout_ns, p->why);
}

/* _put_many(names, arrays, metadata, timeout); three lists of the same length */
PyObject *many_put(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *names, *arrays, *metadata, *timeout;
	struct putting p = { 0 };
	int64_t timeout_ns;
	int r = -1;

	if (!PyArg_ParseTuple(args, "O!O!O!O", &PyList_Type, &names, &PyList_Type, &arrays,
			      &PyList_Type, &metadata, &timeout) ||
	    parse_seconds("timeout", timeout, &timeout_ns))
		return NULL;
	if (!putting_init(&p, names, arrays, metadata) && client_begin(c)) {
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

/* ---- Getting by name ---- */

struct getting {
	tl_client *client;
	const char **names;
	size_t count;
	tl_get_options options;
	DLManagedTensorVersioned **tensors;
	struct wait wait; /* for the first name that is missing */
};

static void find_missing(struct getting *g)
{
	tl_info info = { .size = sizeof(info) };

	g->wait.item = (tl_wait_item){ .name = g->names[0] }; /* all of them have come meanwhile */
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
	int r = tl_get_many(g->client, g->names, g->count, &g->options, g->tensors);

	if (r == -ENOENT || r == -ENODATA)
		find_missing(g);
	return r;
}

/* Takes the tensors of @g over. */
static PyObject *tensor_list(struct getting *g)
{
	PyObject *list = PyList_New((Py_ssize_t)g->count);
	size_t n = 0;

	while (list && n < g->count) {
		PyObject *tensor = tensor_from(g->tensors[n]);

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
	int r;

	g->client = c->client;
	g->wait = (struct wait){ .look = many_look, .context = g };
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
		raise_text(-ENODATA, "'%s' is lost: its GPU memory is gone with its producer",
			   g->wait.item.name);
		return -1;
	}
	if (r > 0)
		raise_text(-ETIMEDOUT, "no tensor '%s' came within %lld ms", g->wait.item.name,
			   (long long)(timeout_ns / 1000000));
	return r ? -1 : 0;
}

static int getting_init(struct getting *g, PyObject *names)
{
	Py_ssize_t n = PyList_Size(names);

	g->names = PyMem_Calloc((size_t)n + 1, sizeof(*g->names));
	g->tensors = PyMem_Calloc((size_t)n + 1, sizeof(DLManagedTensorVersioned *));
	if (!g->names || !g->tensors) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		g->names[i] = name_utf8(PyList_GetItem(names, i));
		if (!g->names[i])
			return -1;
	}
	g->count = (size_t)n;
	return 0;
}

/* _get_many(names: list, timeout, mode) -> list of Tensors */
PyObject *many_get(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	struct getting g = { .options = { .size = sizeof(g.options), .stream = TL_STREAM_NONE } };
	PyObject *names, *timeout, *mode, *list = NULL;
	int64_t timeout_ns;

	if (!PyArg_ParseTuple(args, "O!OO", &PyList_Type, &names, &timeout, &mode) ||
	    parse_seconds("timeout", timeout, &timeout_ns) || parse_mode(mode, &g.options.mode))
		return NULL;
	if (!getting_init(&g, names) && client_begin(c)) {
		int r = many_take(c, &g, timeout_ns);

		client_end(c);
		if (!r)
			list = tensor_list(&g);
	}
	PyMem_Free(g.tensors);
	PyMem_Free(g.names);
	return list;
}

/* ---- Getting by what the names start with ---- */

struct getting_all {
	tl_client *client;
	const char *prefix;
	enum tl_mode mode;
	struct snapshot found;
	char why[FILE_ERROR_TEXT];
};

static int all_look(void *context)
{
	struct getting_all *g = context;
	int r = snapshot_get(&g->found, g->client, g->prefix, g->mode, g->why);

	if (r == -EBUSY)
		return -EAGAIN;
	return !r && !g->found.count ? -ENOENT : r;
}

/* Takes the tensors of @found over. */
static PyObject *tensor_dict(struct snapshot *found)
{
	PyObject *dict = PyDict_New();

	for (size_t i = 0; dict && i < found->count; i++) {
		PyObject *name = PyUnicode_FromString(found->names[i]);
		PyObject *tensor = tensor_from(found->tensors[i]);

		found->tensors[i] = NULL;
		if (!name || !tensor || PyDict_SetItem(dict, name, tensor))
			Py_CLEAR(dict);
		Py_XDECREF(name);
		Py_XDECREF(tensor);
	}
	snapshot_deinit(found);
	return dict;
}

/* Raises what the last attempt, which failed with @r, means. */
static int all_failed(const struct getting_all *g, int r, int64_t timeout_ns)
{
	if (r == -EAGAIN)
		raise_text(timeout_ns ? -ETIMEDOUT : -EBUSY, "%s", g->why);
	else if (r == -ENOENT && timeout_ns)
		raise_text(-ETIMEDOUT, "no tensor whose name starts with '%s' came within %lld ms",
			   g->prefix, (long long)(timeout_ns / 1000000));
	else if (r == -ENOENT)
		raise_text(-ENOENT, "there is no tensor whose name starts with '%s'", g->prefix);
	else
		raise_error(r);
	return -1;
}

static int all_take(struct client *c, struct getting_all *g, int64_t timeout_ns)
{
	const struct wait wait = { .look = all_look, .context = g };
	int r;

	g->client = c->client;
	Py_BEGIN_ALLOW_THREADS;
	r = all_look(g);
	Py_END_ALLOW_THREADS;
	if (!r)
		return 0;
	if (!timeout_ns || !worth_waiting(r))
		return all_failed(g, r, timeout_ns);
	*g->why = '\0';
	r = client_wait(c, &wait, timeout_ns);
	return r > 0 ? all_failed(g, *g->why ? -EAGAIN : -ENOENT, timeout_ns) : r;
}

/* _get_all(prefix, timeout, mode) -> dict of names and Tensors */
PyObject *many_get_all(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	PyObject *prefix, *timeout, *mode;
	struct getting_all g = { 0 };
	int64_t timeout_ns;
	int r;

	if (!PyArg_ParseTuple(args, "OOO", &prefix, &timeout, &mode) ||
	    parse_seconds("timeout", timeout, &timeout_ns) || parse_mode(mode, &g.mode))
		return NULL;
	g.prefix = text_utf8("prefix", prefix);
	if (!g.prefix || !client_begin(c))
		return NULL;
	r = all_take(c, &g, timeout_ns);
	client_end(c);
	return r ? NULL : tensor_dict(&g.found);
}
