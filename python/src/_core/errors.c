/* SPDX-License-Identifier: Apache-2.0 */
/* Exceptions. The classes are Python's; _errors.py maps each errno to one. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "cuda.h"
#include "draft.h"

PyTypeObject *tensor_type, *draft_type;
PyObject *interface_reader, *cuda_reader, *stream_reader, *device_reader, *values_reader,
	*metadata_writer;

static PyObject *errors;	 /* dict: errno -> class */
static PyObject *connect_errors; /* the same while connecting */
static PyObject *base_error;
static PyObject *modules; /* dict: name -> module */

int errors_init(PyObject *module)
{
	modules = PyDict_New();
	return modules ? PyModule_AddStringConstant(module, "library_version", tl_version()) : -1;
}

/*
 * _core.modules() -> dict. The modules of the package by their names, for a second import in the
 * process: what we keep and raise are the classes of the first.
 */
PyObject *package_modules(PyObject *module, PyObject *unused)
{
	(void)module, (void)unused;
	if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
		PyErr_SetString(PyExc_ImportError, "tensorlease does not work in subinterpreters");
		return NULL;
	}
	return Py_NewRef(modules);
}

/*
 * _core.register(errors, connect_errors, base error, Tensor, Draft, five readers, write_metadata)
 */
PyObject *register_types(PyObject *module, PyObject *args)
{
	PyObject *e, *ce, *base, *tensor, *draft, *reader, *cuda, *stream, *device, *values,
		*metadata;

	(void)module;
	if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &e, &ce, &base, &tensor, &draft, &reader, &cuda,
			      &stream, &device, &values, &metadata) ||
	    interpreter_await_end())
		return NULL;
	Py_XDECREF(errors);
	Py_XDECREF(connect_errors);
	Py_XDECREF(base_error);
	Py_XDECREF(interface_reader);
	Py_XDECREF(cuda_reader);
	Py_XDECREF(stream_reader);
	Py_XDECREF(device_reader);
	Py_XDECREF(values_reader);
	Py_XDECREF(metadata_writer);
	Py_XDECREF((PyObject *)tensor_type);
	Py_XDECREF((PyObject *)draft_type);
	errors = Py_NewRef(e);
	connect_errors = Py_NewRef(ce);
	base_error = Py_NewRef(base);
	tensor_type = (PyTypeObject *)Py_NewRef(tensor);
	draft_type = (PyTypeObject *)Py_NewRef(draft);
	interface_reader = Py_NewRef(reader);
	cuda_reader = Py_NewRef(cuda);
	stream_reader = Py_NewRef(stream);
	device_reader = Py_NewRef(device);
	values_reader = Py_NewRef(values);
	metadata_writer = Py_NewRef(metadata);
	Py_RETURN_NONE;
}

/* The library's texts name C functions; these are their names in Python. */
static const char *const in_python[][2] = {
	{ "tl_create()", "Client.create(..., device=...)" },
	{ "TL_PUBLISH_STAGING", "staging=True" },
	{ "tl_spec: ", "" },
	{ "options->", "" },
	{ "tl_get_many: ", "" },
	{ "tl_publish_many: ", "" },
};

static PyObject *words_of(const char *text)
{
	PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");

	for (size_t i = 0; words && i < sizeof(in_python) / sizeof(*in_python); i++) {
		PyObject *replaced;

		if (!strstr(text, in_python[i][0]))
			continue;
		replaced = PyObject_CallMethod(words, "replace", "ss", in_python[i][0],
					       in_python[i][1]);
		Py_DECREF(words);
		words = replaced;
	}
	return words;
}

static PyObject *raise_from(PyObject *classes, int r, const char *text)
{
	PyObject *number, *class, *words, *error;

	if (r == -ENOMEM) {
		PyErr_SetString(PyExc_MemoryError, text);
		return NULL;
	}
	number = PyLong_FromLong(-r);
	if (!number)
		return NULL;
	class = classes ? PyDict_GetItemWithError(classes, number) : NULL;
	if (!class && PyErr_Occurred()) {
		Py_DECREF(number);
		return NULL;
	}
	if (!class)
		class = base_error ? base_error : PyExc_OSError;
	words = words_of(text);
	error = words ? PyObject_CallFunctionObjArgs(class, number, words, NULL) : NULL;
	if (error)
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_XDECREF(words);
	Py_XDECREF(error);
	Py_DECREF(number);
	return NULL;
}

PyObject *raise_error(int r)
{
	return raise_from(errors, r, tl_last_error());
}

PyObject *raise_connect_error(int r)
{
	return raise_from(connect_errors, r, tl_last_error());
}

PyObject *raise_text(int r, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	PyOS_vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return raise_from(errors, r, text);
}

bool clear_error(void)
{
	if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
		PyErr_Clear();
	return !PyErr_Occurred();
}

void raise_ended(PyObject *self, PyObject *class)
{
	const struct draft *d = (const struct draft *)self;
	PyObject *name;

	if (!is_draft(self)) {
		PyErr_SetString(class, "the tensor was released");
		return;
	}
	name = Py_NewRef(d->name);
	if (d->state == DRAFT_UNKNOWN)
		PyErr_Format(class,
			     "draft %R may have been committed, so that nobody may write to it any "
			     "more: call commit() again, or abort()",
			     name);
	else if (d->state == DRAFT_ABORTED)
		PyErr_Format(class, "draft %R was aborted%s", name,
			     d->closed ? " when its client was closed" : "");
	else if (d->state == DRAFT_OPEN)
		PyErr_Format(class, "draft %R is being committed by another thread", name);
	else if (d->version)
		PyErr_Format(class, "draft %R was committed as version %llu: use get()", name,
			     d->version);
	else
		PyErr_Format(class, "draft %R was committed: use get()", name);
	Py_DECREF(name);
}

/* Gives the exception that is set the traceback of the one in whose place it is. */
static void keep_traceback(PyObject *traceback)
{
	PyObject *type, *value, *none;

	if (!traceback)
		return;
	PyErr_Fetch(&type, &value, &none);
	Py_XDECREF(none);
	PyErr_Restore(type, value, Py_NewRef(traceback));
}

void raise_again_with_name(PyObject *name)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	if (type == PyExc_BufferError || type == PyExc_TypeError || type == PyExc_ValueError ||
	    type == PyExc_RuntimeError) {
		PyErr_Format(type, "'%U': %S", name, value);
	} else if (base_error && value && PyObject_IsInstance(value, base_error) == 1) {
		PyObject *number = PyObject_GetAttrString(value, "errno");
		PyObject *text = PyObject_GetAttrString(value, "strerror");
		PyObject *words = text ? PyUnicode_FromFormat("'%U': %S", name, text) : NULL;
		PyObject *error = number && words
					  ? PyObject_CallFunctionObjArgs(type, number, words, NULL)
					  : NULL;

		if (error)
			PyErr_SetObject(type, error);
		Py_XDECREF(number);
		Py_XDECREF(text);
		Py_XDECREF(words);
		Py_XDECREF(error);
	} else {
		PyErr_Restore(type, value, traceback);
		return;
	}
	keep_traceback(traceback);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
}
