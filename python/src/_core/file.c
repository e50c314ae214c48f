/* SPDX-License-Identifier: Apache-2.0 */
/* Files: publishes the tensors in them, and writes tensors to them, by way of transfer/. */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "cuda.h"
#include "lock.h"
#include "transfer/transfer.h"
#include "wait.h"

#define LOOK_NS INT64_C(100000000) /* interval of looks for Ctrl-C and close() */

/* ---- Progress ---- */

struct telling {
	struct client *client;
	PyObject *progress; /* NULL: there is no callback */
	PyThreadState *thread;
	int64_t looked_ns;
	bool began; /* so there was space for all */
};

static int look_around(const struct telling *t)
{
	if (PyErr_CheckSignals())
		return -1;
	if (!t->client->closing)
		return 0;
	PyErr_SetString(PyExc_ValueError, "the client was closed meanwhile");
	return -1;
}

/* The file_interrupted of these calls. */
static int look_after_signal(void *context)
{
	struct telling *t = context;
	int r;

	PyEval_RestoreThread(t->thread);
	r = look_around(t);
	t->thread = PyEval_SaveThread();
	return r ? -ECANCELED : 0;
}

static int tell_python(const struct telling *t, uint64_t done, uint64_t total)
{
	PyObject *answer;

	if (look_around(t))
		return -1;
	if (!t->progress)
		return 0;
	answer = PyObject_CallFunction(t->progress, "KK", (unsigned long long)done,
				       (unsigned long long)total);
	Py_XDECREF(answer);
	return answer ? 0 : -1;
}

/* The file_progress of these calls. */
static int tell(void *context, uint64_t done, uint64_t total)
{
	struct telling *t = context;
	int64_t now = now_ns();
	int r;

	t->began = true;
	if (!t->progress && now - t->looked_ns < LOOK_NS)
		return 0;
	t->looked_ns = now;
	PyEval_RestoreThread(t->thread);
	r = tell_python(t, done, total);
	t->thread = PyEval_SaveThread();
	return r ? -ECANCELED : 0;
}

/* ---- Errors and arguments ---- */

/* Raises the library's errors as ours, and also wrong contents of a file. Other failures of a file
 * are plain OSErrors. */
static PyObject *raise_file(int r, const char *why)
{
	PyObject *text, *error;

	if (PyErr_Occurred()) /* progress raised it, or it is Ctrl-C */
		return NULL;
	if (r == -ENOMEM && !*why)
		return PyErr_NoMemory();
	if (r == -EINVAL || r == -ENOTSUP)
		return raise_text(r, "%s", why);
	text = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");
	if (text && r == -ENOMEM)
		error = PyObject_CallFunction(PyExc_MemoryError, "O", text);
	else
		error = text ? PyObject_CallFunction(PyExc_OSError, "iO", -r, text) : NULL;
	if (error)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_XDECREF(text);
	Py_XDECREF(error);
	return NULL;
}

static PyObject *raise_any(int r, const char *why)
{
	return *why ? raise_file(r, why) : raise_error(r);
}

struct arguments {
	const char *prefix;
	PyObject *path; /* bytes */
	const char *path_text;
	enum file_format format;
	struct telling telling;
};

static enum file_format find_format(const char *name, const char *path)
{
	enum file_format format = name ? file_format_by_name(name) : file_format_of(path);

	if (format != FILE_FORMAT_UNKNOWN)
		return format;
	if (name)
		raise_text(-EINVAL,
			   "format must be 'npy', 'npz', 'safetensors', 'pb' or 'png', not '%s'",
			   name);
	else
		raise_text(
			-EINVAL,
			"path '%s' does not end in .npy, .npz, .safetensors, .pb or .png: name its format with format=",
			path);
	return FILE_FORMAT_UNKNOWN;
}

/* Returns 0 or -1. The caller does Py_CLEAR(a->path) in either case. */
static int parse_file(struct arguments *a, PyObject *self, PyObject *prefix, PyObject *path,
		      PyObject *format, PyObject *progress)
{
	const char *called = NULL;

	*a = (struct arguments){ .telling = { .client = (struct client *)self } };
	a->prefix = text_utf8("prefix", prefix);
	if (!a->prefix)
		return -1;
	if (format != Py_None) {
		called = text_utf8("format", format);
		if (!called)
			return -1;
	}
	a->path = parse_path("path", path);
	if (!a->path)
		return -1;
	a->path_text = PyBytes_AsString(a->path);
	if (!strcmp(a->path_text, "-")) /* here "-" is a file like any other */
		a->path_text = "./-";
	a->format = find_format(called, a->path_text);
	if (a->format == FILE_FORMAT_UNKNOWN)
		return -1;
	if (progress != Py_None && !PyCallable_Check(progress)) {
		PyErr_Format(PyExc_TypeError, "progress must be a function or None, not %R",
			     Py_TYPE(progress));
		return -1;
	}
	a->telling.progress = progress == Py_None ? NULL : progress;
	a->telling.looked_ns = now_ns();
	return 0;
}

/* ---- load ---- */

struct loading {
	struct arguments arguments;
	PyObject *paths; /* a list of bytes, which the files refer to */
	struct tensor_file *files;
	size_t count; /* number of open files */
	tl_put_options options;
	tl_get_options target; /* its device */
	char why[FILE_ERROR_TEXT];
};

static int add_names(PyObject *names, const struct tensor_file *f, const char *prefix)
{
	int r = 0;

	for (size_t i = 0; !r && i < f->count; i++) {
		char *text = transfer_name(f, i, prefix);
		PyObject *name = text ? PyUnicode_FromString(text) : PyErr_NoMemory();

		free(text);
		r = name ? PyList_Append(names, name) : -1;
		Py_XDECREF(name);
	}
	return r;
}

static int add_notes(PyObject *notes, const struct tensor_file *f)
{
	int r = 0;

	for (size_t i = 0; !r && i < f->note_count; i++) {
		PyObject *text = PyUnicode_DecodeUTF8(
			f->notes[i].text, (Py_ssize_t)strlen(f->notes[i].text), "replace");

		r = text ? PyDict_SetItemString(notes, f->notes[i].key, text) : -1;
		Py_XDECREF(text);
	}
	return r;
}

static PyObject *loaded(const struct loading *l)
{
	PyObject *names = PyList_New(0), *notes = PyDict_New();
	int r = names && notes ? 0 : -1;

	for (size_t i = 0; !r && i < l->count; i++) {
		r = add_names(names, &l->files[i], l->arguments.prefix);
		if (!r)
			r = add_notes(notes, &l->files[i]);
	}
	if (!r)
		return Py_BuildValue("NN", names, notes);
	Py_XDECREF(names);
	Py_XDECREF(notes);
	return NULL;
}

static int load_attempt(void *context, int64_t timeout_ns, bool *had_space)
{
	struct loading *l = context;
	struct telling *t = &l->arguments.telling;
	int r;

	l->options.timeout_ns = timeout_ns;
	r = transfer_load(t->client->client, l->files, l->count, l->arguments.prefix,
			  l->target.device, &l->options, tell, t, l->why);
	*had_space = t->began;
	return r;
}

/* Raises InvalidError unless the file that was opened last has all tensors of @names. */
static int check_names(const struct loading *l, PyObject *names)
{
	const struct tensor_file *f = &l->files[l->count - 1];
	PyObject *missing = PySet_New(names), *first = NULL;
	const char *text;
	int r = missing ? 0 : -1;

	for (size_t i = 0; !r && i < f->count; i++) {
		PyObject *name = PyUnicode_FromString(f->entries[i].name);

		r = name && PySet_Discard(missing, name) >= 0 ? 0 : -1;
		Py_XDECREF(name);
	}
	if (!r && PySet_Size(missing)) {
		first = PySet_Pop(missing);
		text = first ? text_utf8("a tensor's name in the index", first) : NULL;
		if (text)
			raise_text(-EINVAL,
				   "%s: it has no tensor '%.200s', though the index says so",
				   f->path, text);
		r = -1;
	}
	Py_XDECREF(first);
	Py_XDECREF(missing);
	return r;
}

/* Opens another file, a pair of its path and the names that it must have, or None. The arguments
 * are parsed anew for each, and stay valid. */
static int loading_open(struct loading *l, PyObject *self, PyObject *prefix, PyObject *file,
			PyObject *format, PyObject *progress)
{
	PyObject *path = PyTuple_GetItem(file, 0), *names = PyTuple_GetItem(file, 1);
	struct arguments *a = &l->arguments;
	int r = parse_file(a, self, prefix, path, format, progress) ||
		PyList_Append(l->paths, a->path);

	Py_CLEAR(a->path);
	if (r)
		return -1;
	a->telling.thread = PyEval_SaveThread();
	r = file_open_interruptible(&l->files[l->count], a->path_text, a->format, look_after_signal,
				    &a->telling, l->why, sizeof(l->why));
	PyEval_RestoreThread(a->telling.thread);
	if (r) {
		raise_file(r, l->why);
		return -1;
	}
	l->count++;
	return names == Py_None ? 0 : check_names(l, names);
}

static void loading_deinit(struct loading *l)
{
	while (l->count)
		file_close(&l->files[--l->count]);
	PyMem_Free(l->files);
	Py_XDECREF(l->paths);
}

static PyObject *load_files(struct loading *l, int64_t timeout_ns)
{
	struct client *c = l->arguments.telling.client;
	int r;

	if (!client_begin(c))
		return NULL;
	l->arguments.telling.thread = PyThreadState_Get();
	r = client_with_space(c, load_attempt, l, timeout_ns);
	if (r < 0)
		raise_any(r, l->why);
	client_end(c);
	return r ? NULL : loaded(l);
}

/*
 * _load(prefix, files: a tuple of pairs, format or None, timeout, progress,
 *	 (ttl, owner_bound, evictable), device or None)
 * -> (names, texts of the files)
 */
PyObject *file_load(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	PyObject *prefix, *paths, *format, *timeout, *progress, *result = NULL;
	PyObject *ttl, *bound, *evictable, *device;
	struct loading l = { .options = { .size = sizeof(l.options) },
			     .target.device = { kDLCPU, 0 } };
	int64_t timeout_ns;
	int r;

	if (!PyArg_ParseTuple(args, "OO!OOO(OOO)O", &prefix, &PyTuple_Type, &paths, &format,
			      &timeout, &progress, &ttl, &bound, &evictable, &device) ||
	    parse_target(device, &l.target) || parse_seconds("timeout", timeout, &timeout_ns) ||
	    parse_lifetime(ttl, bound, evictable, &l.options.ttl_ns, &l.options.lifetime))
		return NULL;
	l.paths = PyList_New(0);
	l.files = PyMem_Calloc((size_t)PyTuple_Size(paths) + 1, sizeof(*l.files));
	r = l.paths && l.files ? 0 : -1;
	if (r)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; !r && i < PyTuple_Size(paths); i++)
		r = loading_open(&l, self, prefix, PyTuple_GetItem(paths, i), format, progress);
	if (!r)
		result = load_files(&l, timeout_ns);
	loading_deinit(&l);
	return result;
}

/* ---- save ---- */

static PyObject *saved_names(const struct snapshot *t)
{
	PyObject *names = PyList_New((Py_ssize_t)t->count);

	for (size_t i = 0; names && i < t->count; i++) {
		PyObject *name = PyUnicode_FromString(t->names[i]);

		if (!name)
			Py_CLEAR(names);
		else
			PyList_SetItem(names, (Py_ssize_t)i, name);
	}
	return names;
}

/* Texts for the file, out of a dict. */
struct notes {
	struct file_note *notes;
	PyObject *items; /* owns the texts */
	size_t count;
};

static int notes_init(struct notes *n, PyObject *metadata)
{
	*n = (struct notes){ 0 };
	if (metadata == Py_None)
		return 0;
	n->items = PySequence_Tuple(metadata);
	n->notes = n->items ? PyMem_Calloc((size_t)PyTuple_Size(n->items) + 1, sizeof(*n->notes))
			    : NULL;
	if (!n->notes)
		return n->items ? (PyErr_NoMemory(), -1) : -1;
	for (Py_ssize_t i = 0; i < PyTuple_Size(n->items); i++) {
		PyObject *pair = PyTuple_GetItem(n->items, i);
		const char *key = text_utf8("a key of metadata", PyTuple_GetItem(pair, 0));
		const char *text = key ? text_utf8("a value of metadata", PyTuple_GetItem(pair, 1))
				       : NULL;

		if (!text)
			return -1;
		n->notes[n->count++] = (struct file_note){ .key = (char *)key,
							   .text = (char *)text };
	}
	return 0;
}

static void notes_deinit(struct notes *n)
{
	Py_XDECREF(n->items);
	PyMem_Free(n->notes);
}

static PyObject *save_file(struct arguments *a, const struct notes *n)
{
	tl_client *client = a->telling.client->client;
	PyObject *names = NULL;
	char why[FILE_ERROR_TEXT];
	struct snapshot t;
	int picked, r = 0;

	a->telling.thread = PyEval_SaveThread();
	picked = snapshot_get_for_file(&t, client, a->prefix, a->format, why);
	if (!picked)
		r = snapshot_save(&t, a->path_text, a->format, n->notes, n->count, tell,
				  look_after_signal, &a->telling, why);
	PyEval_RestoreThread(a->telling.thread);
	if (picked && *why)
		raise_text(picked, "%s", why);
	else if (picked)
		raise_error(picked);
	else
		names = r ? raise_file(r, why) : saved_names(&t);
	snapshot_deinit(&t);
	return names;
}

/* _save(prefix, path, format or None, progress, pairs of texts or None) -> names */
PyObject *file_save(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	PyObject *prefix, *path, *format, *progress, *metadata, *result = NULL;
	struct arguments a = { 0 };
	struct notes n;

	if (!PyArg_ParseTuple(args, "OOOOO", &prefix, &path, &format, &progress, &metadata))
		return NULL;
	if (!notes_init(&n, metadata) && !parse_file(&a, self, prefix, path, format, progress) &&
	    client_begin(a.telling.client)) {
		result = save_file(&a, &n);
		client_end(a.telling.client);
	}
	Py_CLEAR(a.path);
	notes_deinit(&n);
	return result;
}
