/* SPDX-License-Identifier: Apache-2.0 */
/* Files: publishing what is in them, and writing tensors to them, by way of transfer/. */
#include <errno.h>
#include <string.h>

#include "transfer/transfer.h"
#include "file.h"
#include "wait.h"

#define LOOK_NS INT64_C(100000000) /* how often Ctrl-C and close() are looked for */

/* ---- Telling how far it is ---- */

struct telling {
	struct client *client;
	PyObject *progress; /* NULL: there is no callback */
	PyThreadState *thread;
	int64_t looked_ns;
};

static int tell_python(const struct telling *t, uint64_t done, uint64_t total)
{
	PyObject *answer;

	if (PyErr_CheckSignals())
		return -1;
	if (t->client->closing) {
		PyErr_SetString(PyExc_ValueError, "the client was closed meanwhile");
		return -1;
	}
	if (!t->progress)
		return 0;
	answer = PyObject_CallFunction(t->progress, "KK", (unsigned long long)done,
				       (unsigned long long)total);
	Py_XDECREF(answer);
	return answer ? 0 : -1;
}

/* Is a file_progress. */
static int tell(void *context, uint64_t done, uint64_t total)
{
	struct telling *t = context;
	int64_t now = now_ns();
	int r;

	if (!t->progress && now - t->looked_ns < LOOK_NS)
		return 0;
	t->looked_ns = now;
	PyEval_RestoreThread(t->thread);
	r = tell_python(t, done, total);
	t->thread = PyEval_SaveThread();
	return r ? -ECANCELED : 0;
}

/* ---- Errors and arguments ---- */

/*
 * The library's errors are raised as ours, and so is wrong content of a file. Other failures of a
 * file are plain OSErrors.
 */
static PyObject *raise_file(int r, const char *why)
{
	PyObject *text, *error;

	if (PyErr_Occurred()) /* progress raised it, or it is Ctrl-C */
		return NULL;
	if (r == -ENOMEM)
		return PyErr_NoMemory();
	if (r == -EINVAL || r == -ENOTSUP)
		return raise_text(r, "%s", why);
	text = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");
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
		raise_text(-EINVAL, "format must be 'npy', 'npz', 'safetensors' or 'pb', not '%s'",
			   name);
	else
		raise_text(
			-EINVAL,
			"'%s' does not end in .npy, .npz, .safetensors or .pb: name its format with format=",
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

static PyObject *loaded_names(const struct tensor_file *f, const char *prefix)
{
	PyObject *names = PyList_New((Py_ssize_t)f->count);

	for (size_t i = 0; names && i < f->count; i++) {
		char *text = transfer_name(f, i, prefix);
		PyObject *name = text ? PyUnicode_FromString(text) : PyErr_NoMemory();

		free(text);
		if (!name)
			Py_CLEAR(names);
		else
			PyList_SetItem(names, (Py_ssize_t)i, name);
	}
	return names;
}

static PyObject *loaded_notes(const struct tensor_file *f)
{
	PyObject *notes = PyDict_New();

	for (size_t i = 0; notes && i < f->note_count; i++) {
		PyObject *text = PyUnicode_DecodeUTF8(
			f->notes[i].text, (Py_ssize_t)strlen(f->notes[i].text), "replace");

		if (!text || PyDict_SetItemString(notes, f->notes[i].key, text))
			Py_CLEAR(notes);
		Py_XDECREF(text);
	}
	return notes;
}

struct loading {
	struct arguments *arguments;
	struct tensor_file *file;
	char why[FILE_ERROR_TEXT];
};

static int load_attempt(void *context, int64_t timeout_ns)
{
	struct loading *l = context;
	struct telling *t = &l->arguments->telling;

	return transfer_load(t->client->client, l->file, l->arguments->prefix, timeout_ns, tell, t,
			     l->why);
}

static PyObject *load_file(struct arguments *a, struct tensor_file *f, int64_t timeout_ns)
{
	struct loading l = { .arguments = a, .file = f };
	int r;

	a->telling.thread = PyThreadState_Get();
	r = client_with_space(a->telling.client, load_attempt, &l, timeout_ns);
	if (r)
		return r < 0 ? raise_any(r, l.why) : NULL;
	return Py_BuildValue("NN", loaded_names(f, a->prefix), loaded_notes(f));
}

/* _load(prefix, path, format or None, timeout, progress) -> (names, texts of the file) */
PyObject *file_load(PyObject *self, PyObject *args)
{
	PyObject *prefix, *path, *format, *timeout, *progress, *result = NULL;
	char why[FILE_ERROR_TEXT];
	struct arguments a;
	struct tensor_file f;
	int64_t timeout_ns;
	int r;

	if (!PyArg_ParseTuple(args, "OOOOO", &prefix, &path, &format, &timeout, &progress) ||
	    parse_seconds("timeout", timeout, &timeout_ns))
		return NULL;
	if (!parse_file(&a, self, prefix, path, format, progress) &&
	    client_begin(a.telling.client)) {
		Py_BEGIN_ALLOW_THREADS;
		r = file_open(&f, a.path_text, a.format, why, sizeof(why));
		Py_END_ALLOW_THREADS;
		if (r)
			raise_file(r, why);
		else
			result = load_file(&a, &f, timeout_ns);
		if (!r)
			file_close(&f);
		client_end(a.telling.client);
	}
	Py_CLEAR(a.path);
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

static PyObject *save_file(struct arguments *a)
{
	tl_client *client = a->telling.client->client;
	PyObject *names = NULL;
	char why[FILE_ERROR_TEXT];
	struct snapshot t;
	int picked, r = 0;

	a->telling.thread = PyEval_SaveThread();
	picked = snapshot_get_for_file(&t, client, a->prefix, a->format, why);
	if (!picked)
		r = snapshot_save(&t, a->path_text, a->format, tell, &a->telling, why);
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

/* _save(prefix, path, format or None, progress) -> names */
PyObject *file_save(PyObject *self, PyObject *args)
{
	PyObject *prefix, *path, *format, *progress, *result = NULL;
	struct arguments a;

	if (!PyArg_ParseTuple(args, "OOOO", &prefix, &path, &format, &progress))
		return NULL;
	if (!parse_file(&a, self, prefix, path, format, progress) &&
	    client_begin(a.telling.client)) {
		result = save_file(&a);
		client_end(a.telling.client);
	}
	Py_CLEAR(a.path);
	return result;
}
