/* SPDX-License-Identifier: Apache-2.0 */
/* Converts arguments of calls from Python, and checks them. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "core.h"

const char *text_utf8(const char *argument, PyObject *o)
{
	Py_ssize_t size;
	const char *text;

	if (!PyUnicode_Check(o)) {
		PyErr_Format(PyExc_TypeError, "%s must be a str, not %R", argument, Py_TYPE(o));
		return NULL;
	}
	text = PyUnicode_AsUTF8AndSize(o, &size);
	if (text && strlen(text) != (size_t)size) {
		raise_text(-EINVAL, "%s must not contain a NUL character", argument);
		return NULL;
	}
	return text;
}

const char *name_utf8(PyObject *o)
{
	return text_utf8("a tensor's name", o);
}

PyObject *parse_path(const char *argument, PyObject *o)
{
	PyObject *path = NULL;

	if (PyUnicode_FSConverter(o, &path))
		return path;
	if (PyErr_ExceptionMatches(PyExc_TypeError))
		PyErr_Format(PyExc_TypeError, "%s must be a str or os.PathLike, not %R", argument,
			     Py_TYPE(o));
	return NULL;
}

int parse_seconds(const char *argument, PyObject *o, int64_t *ns)
{
	static const char what[] = "%s must be seconds, 0 or more, float('inf') or None, not %R";
	double seconds;

	*ns = 0;
	if (!o || o == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(o);
	if (seconds == -1.0 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_TypeError))
			PyErr_Format(PyExc_TypeError, what, argument, o);
		else if (PyErr_ExceptionMatches(PyExc_OverflowError))
			PyErr_Format(PyExc_ValueError,
				     "%s must be seconds, not an int that is too "
				     "large for a float",
				     argument);
		return -1;
	}
	if (isnan(seconds) || seconds < 0) {
		PyErr_Format(PyExc_ValueError, what, argument, o);
		return -1;
	}
	/* below 2^63 */
	*ns = seconds > 9.2e9 ? -1 : (int64_t)ceil(seconds * 1e9);
	return 0;
}

/* A time to live is not a timeout: 0 and infinity are mistakes. */
int parse_ttl(PyObject *o, int64_t *ns)
{
	double seconds;

	*ns = 0;
	if (!o || o == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(o);
	if (seconds == -1.0 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_TypeError))
			PyErr_Format(PyExc_TypeError, "ttl must be seconds or None, not %R", o);
		else if (PyErr_ExceptionMatches(PyExc_OverflowError))
			PyErr_SetString(PyExc_ValueError, "ttl must be above 0 and at most 1e9 "
							  "seconds, not an int that is too large "
							  "for a float");
		return -1;
	}
	if (seconds > 0 && seconds <= (double)TL_TTL_MAX / (double)NS_PER_SEC)
		*ns = (int64_t)(seconds * (double)NS_PER_SEC + 0.5);
	if (*ns)
		return 0;
	raise_text(-EINVAL, "ttl must be above 0 and at most 1e9 seconds, not %g", seconds);
	return -1;
}

static int parse_lifetime_flag(PyObject *o, uint32_t flag, uint32_t *flags)
{
	int truth = o ? PyObject_IsTrue(o) : 0;

	if (truth > 0)
		*flags |= flag;
	return truth < 0 ? -1 : 0;
}

int parse_lifetime(PyObject *ttl, PyObject *owner_bound, PyObject *evictable, int64_t *ttl_ns,
		   uint32_t *lifetime)
{
	*lifetime = 0;
	if (parse_ttl(ttl, ttl_ns) ||
	    parse_lifetime_flag(owner_bound, TL_LIFETIME_OWNER_BOUND, lifetime) ||
	    parse_lifetime_flag(evictable, TL_LIFETIME_EVICTABLE, lifetime))
		return -1;
	return 0;
}

int parse_sizes(PyObject *tuple, int64_t *sizes, int32_t *ndim)
{
	Py_ssize_t n = PyTuple_Size(tuple);

	if (n > TL_NDIM_MAX) {
		raise_text(-EINVAL, "shape: %zd dimensions; the limit is %d", n, TL_NDIM_MAX);
		return -1;
	}
	*ndim = (int32_t)n;
	for (Py_ssize_t i = 0; i < n; i++) {
		sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
		if (sizes[i] == -1 && PyErr_Occurred())
			return -1;
	}
	return 0;
}

static bool is_auto(PyObject *o)
{
	return PyUnicode_Check(o) && PyUnicode_CompareWithASCIIString(o, "auto") == 0;
}

int parse_ring(PyObject *o, uint32_t *ring)
{
	long slots;

	*ring = TL_RING_AUTO;
	if (!o || o == Py_None)
		return 0;
	if (o == Py_False || o == Py_True || is_auto(o)) {
		*ring = o == Py_False ? TL_RING_NONE : TL_RING_AUTO;
		return 0;
	}
	slots = PyLong_Check(o) ? PyLong_AsLong(o) : 0;
	if (slots == -1 && PyErr_Occurred())
		PyErr_Clear();
	if (slots >= 1 && slots <= TL_RING_MAX) {
		*ring = (uint32_t)slots;
		return 0;
	}
	PyErr_Format(PyLong_Check(o) ? PyExc_ValueError : PyExc_TypeError,
		     "ring must be a number of slots from 1 to %d, 'auto', False or None, not %R",
		     TL_RING_MAX, o);
	return -1;
}

PyObject *check_seconds(PyObject *module, PyObject *args)
{
	const char *argument;
	PyObject *timeout;
	int64_t ns;

	(void)module;
	if (!PyArg_ParseTuple(args, "sO", &argument, &timeout) ||
	    parse_seconds(argument, timeout, &ns))
		return NULL;
	Py_RETURN_NONE;
}

PyObject *lacks_tensors(PyObject *module, PyObject *unused)
{
	(void)module;
	(void)unused;
	return PyBool_FromLong(tl_last_cause(NULL) == TL_CAUSE_TENSORS);
}

int parse_uint64(const char *argument, PyObject *o, uint64_t *number)
{
	static const char what[] = "%s must be an int from 0 to 2^64-1, not %R";
	PyObject *given;

	*number = 0;
	if (!o)
		return 0;
	given = PyNumber_Index(o);
	if (given) {
		*number = PyLong_AsUnsignedLongLong(given);
		Py_DECREF(given);
	}
	if (!PyErr_Occurred())
		return 0;
	if (PyErr_ExceptionMatches(PyExc_OverflowError))
		PyErr_Format(PyExc_ValueError, what, argument, o);
	else if (PyErr_ExceptionMatches(PyExc_TypeError))
		PyErr_Format(PyExc_TypeError, what, argument, o);
	return -1;
}

PyObject *check_uint64(PyObject *module, PyObject *args)
{
	const char *argument;
	uint64_t number;
	PyObject *o;

	(void)module;
	if (!PyArg_ParseTuple(args, "sO", &argument, &o) || parse_uint64(argument, o, &number))
		return NULL;
	return PyLong_FromUnsignedLongLong(number);
}

int parse_mode(PyObject *o, enum tl_mode *mode)
{
	*mode = TL_MODE_READ;
	if (!o)
		return 0;
	if (PyUnicode_Check(o)) {
		if (!PyUnicode_CompareWithASCIIString(o, "r"))
			return 0;
		*mode = TL_MODE_COPY_ON_WRITE;
		if (!PyUnicode_CompareWithASCIIString(o, "c"))
			return 0;
	}
	PyErr_Format(PyExc_ValueError,
		     "mode must be 'r' (read-only) or 'c' (copy-on-write), not %R", o);
	return -1;
}

int parse_metadata(PyObject *o, Py_ssize_t limit, Py_buffer *view)
{
	memset(view, 0, sizeof(*view));
	if (!o || o == Py_None)
		return 0;
	if (PyUnicode_Check(o) || PyDict_Check(o)) {
		PyObject *bytes = PyObject_CallFunctionObjArgs(metadata_writer, o, NULL);
		int r = bytes ? parse_metadata(bytes, limit, view) : -1;

		Py_XDECREF(bytes); /* the view keeps it */
		return r;
	}
	if (!PyObject_CheckBuffer(o)) {
		PyErr_Format(PyExc_TypeError,
			     "metadata must be bytes, a str, a dict or None, not %R", Py_TYPE(o));
		return -1;
	}
	if (PyObject_GetBuffer(o, view, 0)) {
		memset(view, 0, sizeof(*view));
		if (clear_error())
			PyErr_Format(PyExc_BufferError, "metadata must be contiguous bytes, not %R",
				     o);
		return -1;
	}
	if (view->len <= limit)
		return 0;
	raise_text(-EINVAL, "metadata: %zd bytes; the limit is %zd", view->len, limit);
	PyBuffer_Release(view);
	return -1;
}

static int keyword_put(const char *function, const struct keyword *keywords, PyObject *name,
		       PyObject *value)
{
	for (const struct keyword *k = keywords; k->name; k++) {
		if (PyUnicode_CompareWithASCIIString(name, k->name))
			continue;
		if (*k->value) {
			PyErr_Format(PyExc_TypeError, "%s() got '%U' twice", function, name);
			return -1;
		}
		*k->value = value;
		return 0;
	}
	PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function,
		     name);
	return -1;
}

int parse_arguments(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
		    Py_ssize_t positional, const struct keyword *keywords)
{
	Py_ssize_t n = names ? PyTuple_Size(names) : 0;

	if (nargs > positional) {
		PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments; %zd were given",
			     function, positional, nargs);
		return -1;
	}
	for (Py_ssize_t i = 0; i < nargs; i++)
		*keywords[i].value = args[i];
	for (Py_ssize_t i = 0; i < n; i++)
		if (keyword_put(function, keywords, PyTuple_GetItem(names, i), args[nargs + i]))
			return -1;
	for (Py_ssize_t i = 0; i < positional; i++) {
		if (*keywords[i].value)
			continue;
		PyErr_Format(PyExc_TypeError, "%s() is missing its argument '%s'", function,
			     keywords[i].name);
		return -1;
	}
	return 0;
}
