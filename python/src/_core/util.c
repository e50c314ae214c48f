/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors and arguments. The exception classes are Python's; _errors.py maps each errno to one.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda.h"
#include "draft.h"
#include "wait.h"

PyTypeObject *tensor_type, *draft_type;
PyObject *interface_reader, *cuda_reader, *stream_reader, *device_reader, *refusal_writer;

static PyObject *errors;	 /* dict: errno -> class */
static PyObject *connect_errors; /* the same while connecting */
static PyObject *base_error;
static PyObject *modules; /* dict: name -> module */

unsigned forks;

/* More are not noted: each is in a handler of a signal that came during the one before. */
enum { OWN_CALLS = 32 };

struct own_calls {
	const struct calls *of[OWN_CALLS];
	unsigned n;
};

/* The calls that this thread is in, of any client. */
static _Thread_local struct own_calls own;
/* In a child, those of the thread that forked: it goes on with them, and no other thread is there.
 * What is counted anew leaves the list. */
static struct own_calls inherited;

/* ---- The end of the interpreter ---- */

enum { IS_ENDING = 1U << 31 };

static _Atomic uint32_t within; /* how many threads are; IS_ENDING */
static _Thread_local uint32_t own_within;

bool interpreter_enter(void)
{
	uint32_t now = atomic_load(&within);

	do {
		/* Nothing says that it begins to end if atexit's functions are cleared, or run
		 * before we are imported. */
		if (now & IS_ENDING || !Py_IsInitialized())
			return false;
	} while (!atomic_compare_exchange_weak(&within, &now, now + 1));
	own_within++;
	return true;
}

void interpreter_leave(void)
{
	own_within--;
	if (atomic_fetch_sub(&within, 1) & IS_ENDING)
		syscall(SYS_futex, &within, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Gives the GIL up, which those who are within may need. A deleter of another library may block
 * for ever, which Ctrl-C ends. */
static PyObject *end_interpreter(PyObject *self, PyObject *unused)
{
	const struct timespec slice = { .tv_nsec = WAIT_SLICE_NS };
	uint32_t now = atomic_fetch_or(&within, IS_ENDING) | IS_ENDING;

	(void)self, (void)unused;
	for (; now != (IS_ENDING | own_within); now = atomic_load(&within)) {
		Py_BEGIN_ALLOW_THREADS;
		syscall(SYS_futex, &within, FUTEX_WAIT_PRIVATE, now, &slice, NULL, 0);
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals())
			return NULL;
	}
	Py_RETURN_NONE;
}

/* Functions of atexit run before the interpreter begins to end. A program may start another one
 * after that. */
static int await_the_end(void)
{
	static PyMethodDef method = { "end_interpreter", end_interpreter, METH_NOARGS, NULL };
	PyObject *atexit = PyImport_ImportModule("atexit");
	PyObject *function = atexit ? PyCFunction_New(&method, NULL) : NULL;
	PyObject *done = function ? PyObject_CallMethod(atexit, "register", "O", function) : NULL;

	Py_XDECREF(atexit);
	Py_XDECREF(function);
	Py_XDECREF(done);
	atomic_fetch_and(&within, ~(uint32_t)IS_ENDING);
	return done ? 0 : -1;
}

/* ---- Calls ---- */

static void count_fork(void)
{
	inherited = own;
	forks++;
	atomic_store(&within, (atomic_load(&within) & IS_ENDING) | own_within);
}

static void calls_look(struct calls *calls)
{
	if (calls->forks == forks)
		return;
	*calls = (struct calls){ .forks = forks };
	for (unsigned i = 0; i < inherited.n && i < OWN_CALLS; i++) {
		calls->count += inherited.of[i] == calls;
		if (inherited.of[i] == calls)
			inherited.of[i] = NULL;
	}
}

void calls_begin(struct calls *calls)
{
	calls_look(calls);
	calls->count++;
	if (own.n < OWN_CALLS)
		own.of[own.n] = calls;
	own.n++;
}

bool calls_end(struct calls *calls)
{
	calls_look(calls);
	own.n--;
	calls->count -= calls->count != 0;
	return calls->count == 0;
}

bool calls_any(struct calls *calls)
{
	calls_look(calls);
	return calls->count;
}

int util_init(PyObject *module)
{
	if (pthread_atfork(NULL, NULL, count_fork)) {
		PyErr_NoMemory();
		return -1;
	}
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

/* _core.register(errors, connect_errors, base error, Tensor, Draft, four readers, why_no_array) */
PyObject *register_types(PyObject *module, PyObject *args)
{
	PyObject *e, *ce, *base, *tensor, *draft, *reader, *cuda, *stream, *device, *refusal;

	(void)module;
	if (!PyArg_ParseTuple(args, "OOOOOOOOOO", &e, &ce, &base, &tensor, &draft, &reader, &cuda,
			      &stream, &device, &refusal) ||
	    await_the_end())
		return NULL;
	Py_XDECREF(errors);
	Py_XDECREF(connect_errors);
	Py_XDECREF(base_error);
	Py_XDECREF(interface_reader);
	Py_XDECREF(cuda_reader);
	Py_XDECREF(stream_reader);
	Py_XDECREF(device_reader);
	Py_XDECREF(refusal_writer);
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
	refusal_writer = Py_NewRef(refusal);
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

/* ---- Arguments ---- */

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
static int parse_ttl(PyObject *o, int64_t *ns)
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

int parse_metadata(PyObject *o, Py_buffer *view)
{
	memset(view, 0, sizeof(*view));
	if (!o || o == Py_None)
		return 0;
	if (!PyObject_CheckBuffer(o)) {
		PyErr_Format(PyExc_TypeError, "metadata must be bytes or None, not %R", Py_TYPE(o));
		return -1;
	}
	if (PyObject_GetBuffer(o, view, 0)) {
		memset(view, 0, sizeof(*view));
		if (clear_error())
			PyErr_Format(PyExc_BufferError, "metadata must be contiguous bytes, not %R",
				     o);
		return -1;
	}
	if (view->len <= TL_METADATA_MAX)
		return 0;
	raise_text(-EINVAL, "metadata: %zd bytes; the limit is %d", view->len, TL_METADATA_MAX);
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
