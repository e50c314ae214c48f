/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches. A watch has a reference to its client, which is closed before it or with it. A call on a
 * watch counts as a call of the client, so that close() of the client waits for its end and
 * interrupts its wait. If the watch is closed while calls are under way, the last of them closes
 * it, at the end of its slice. The library allows no tl_watch_close() during tl_close(): so it
 * counts as a call of the client, and a watch that ends during tl_close() is left to who called
 * that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include <tensorlease/watch.h>

#include "client.h"
#include "lock.h"
#include "wait.h"

struct ended_watch {
	tl_watch *watch;
	struct ended_watch *next; /* in the client's list */
};

struct watch {
	PyObject_HEAD struct client *client;
	tl_watch *watch;	   /* NULL: closed */
	struct ended_watch *ended; /* what the client gets if it has to close the watch */
	struct calls calls;
	bool closing;
};

static PyTypeObject *watch_type;

static const char *const whats[] = {
	[TL_WATCH_PUBLISHED] = "published",	    [TL_WATCH_DELETED] = "deleted",
	[TL_WATCH_PRODUCER_GONE] = "producer-gone", [TL_WATCH_LOST] = "lost",
	[TL_WATCH_RESTARTED] = "restarted",
};

PyObject *client_watch(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	tl_watch_options options = { .size = sizeof(options) };
	int prefix, only_new, r;
	struct watch *watch;
	PyObject *name_object;
	const char *name;

	if (!PyArg_ParseTuple(args, "Opp", &name_object, &prefix, &only_new))
		return NULL;
	name = name_utf8(name_object);
	if (!name || !client_begin(c))
		return NULL;
	options.flags = (prefix ? TL_WATCH_PREFIX : 0) | (only_new ? TL_WATCH_NEW : 0);
	watch = (struct watch *)((allocfunc)PyType_GetSlot(watch_type, Py_tp_alloc))(watch_type, 0);
	if (watch) {
		tl_watch *opened = NULL;

		watch->client = (struct client *)Py_NewRef(self); /* it can be seen by now */
		watch->ended = calloc(1, sizeof(*watch->ended));
		Py_BEGIN_ALLOW_THREADS;
		r = watch->ended ? tl_watch_open(c->client, name, &options, &opened) : -ENOMEM;
		Py_END_ALLOW_THREADS;
		watch->watch = opened;
		if (r) {
			if (watch->ended)
				raise_error(r);
			else
				PyErr_NoMemory();
			Py_CLEAR(watch);
		}
	}
	client_end(c);
	return (PyObject *)watch;
}

/* Also called when its client is closed: then only its memory is left. */
static void close_now(struct watch *w)
{
	struct client *c = w->client;
	tl_watch *watch = w->watch;

	w->watch = NULL;
	if (calls_any(&c->ends)) {
		*w->ended = (struct ended_watch){ watch, c->ended };
		c->ended = w->ended;
		w->ended = NULL;
		return;
	}
	calls_begin(&c->calls);
	Py_BEGIN_ALLOW_THREADS;
	tl_watch_close(watch);
	Py_END_ALLOW_THREADS;
	client_end(c);
}

void watches_close_ended(struct client *c)
{
	while (c->ended) {
		struct ended_watch *ended = c->ended;

		c->ended = ended->next;
		Py_BEGIN_ALLOW_THREADS;
		tl_watch_close(ended->watch);
		Py_END_ALLOW_THREADS;
		free(ended);
	}
}

static bool watch_begin(struct watch *w)
{
	if (w->closing) {
		PyErr_SetString(PyExc_ValueError, "the watch is closed");
		return false;
	}
	if (!client_begin(w->client))
		return false;
	calls_begin(&w->calls);
	return true;
}

static void watch_end(struct watch *w)
{
	if (calls_end(&w->calls) && w->closing && w->watch)
		close_now(w);
	client_end(w->client);
}

static PyObject *watch_close(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct watch *w = (struct watch *)self;

	(void)unused;
	w->closing = true;
	if (w->watch && !calls_any(&w->calls))
		close_now(w);
	Py_RETURN_NONE;
}

static PyObject *event_tuple(const tl_watch_event *e)
{
	const char *what = e->what > 0 && (size_t)e->what < sizeof(whats) / sizeof(whats[0])
				   ? whats[e->what]
				   : "unknown";

	return Py_BuildValue("(ssKK)", what, e->name, (unsigned long long)e->version,
			     (unsigned long long)e->skipped);
}

static int append_event(PyObject *list, const tl_watch_event *e)
{
	PyObject *event = event_tuple(e);
	int r = event ? PyList_Append(list, event) : -1;

	Py_XDECREF(event);
	return r;
}

/*
 * Appends the next event to @list, where it stays if a signal that has come meanwhile raises as
 * this call returns. Returns True, or False if none came in time.
 *
 * Waits in slices of a second, because a signal that comes between PyErr_CheckSignals() and the
 * sleep does not end the sleep.
 */
static PyObject *watch_wait(struct watch *w, int64_t timeout_ns, PyObject *list)
{
	struct client *c = w->client;
	int64_t end = wait_end(timeout_ns), left;
	tl_watch_event event = { .size = sizeof(event) };
	uint32_t over = __atomic_load_n(&c->over, __ATOMIC_SEQ_CST);
	int r;

	for (;;) {
		if (c->closing || w->closing) {
			PyErr_SetString(PyExc_ValueError,
					c->closing ? "the client was closed during a watch"
						   : "the watch was closed meanwhile");
			return NULL;
		}
		left = timeout_ns ? wait_left(end) : 0;
		Py_BEGIN_ALLOW_THREADS;
		r = tl_watch_next(w->watch,
				  &TL_INIT(tl_wait_options,
					   .timeout_ns = left < NS_PER_SEC ? left : NS_PER_SEC,
					   .interrupt = &c->over, .interrupt_value = over),
				  &event);
		Py_END_ALLOW_THREADS;
		if (!r)
			return append_event(list, &event) ? NULL : PyBool_FromLong(1);
		if (!left && (r == -EAGAIN || r == -ETIMEDOUT))
			return PyBool_FromLong(0);
		if (r != -EAGAIN && r != -ETIMEDOUT && r != -EINTR && r != -ECANCELED &&
		    (r != -ENOTCONN || !left))
			return raise_error(r);
		if (PyErr_CheckSignals())
			return NULL;
	}
}

static PyObject *watch_next(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct watch *w = (struct watch *)self;
	PyObject *timeout, *list, *came;
	int64_t ns;

	if (!PyArg_ParseTuple(args, "OO!", &timeout, &PyList_Type, &list) ||
	    parse_seconds("timeout", timeout, &ns) || !watch_begin(w))
		return NULL;
	came = watch_wait(w, ns, list);
	watch_end(w);
	return came;
}

/* @copy: the caller may use it when the watch is closed, and closes it. */
static PyObject *watch_descriptor(PyObject *self, bool copy)
{
	WITH_LOCK;
	struct watch *w = (struct watch *)self;
	int fd, r;

	if (!watch_begin(w))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_watch_fd(w->watch, &fd);
	if (!r && copy)
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	else if (fd < 0)
		PyErr_SetFromErrno(PyExc_OSError);
	watch_end(w);
	return r || fd < 0 ? NULL : PyLong_FromLong(fd);
}

static PyObject *watch_fileno(PyObject *self, PyObject *unused)
{
	(void)unused;
	return watch_descriptor(self, false);
}

static PyObject *watch_dup(PyObject *self, PyObject *unused)
{
	(void)unused;
	return watch_descriptor(self, true);
}

static void watch_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self); /* before it waits for the lock: a collection must not find it */
	WITH_LOCK;
	struct watch *w = (struct watch *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);

	if (w->watch) /* no call is under way, since each has a reference */
		close_now(w);
	free(w->ended);
	Py_XDECREF((PyObject *)w->client);
	end(self);
	Py_DECREF(type);
}

/* A client may refer to its watch. There is no clear: a cycle has something else that ends it. */
static int watch_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct watch *)self)->client);
	return 0;
}

static PyMethodDef methods[] = {
	{ "next", watch_next, METH_VARARGS, NULL },
	{ "fileno", watch_fileno, METH_NOARGS, NULL },
	{ "dup", watch_dup, METH_NOARGS, NULL },
	{ "close", watch_close, METH_NOARGS, NULL },
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_dealloc, watch_dealloc },
	{ Py_tp_traverse, watch_traverse },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

static PyType_Spec spec = {
	.name = "tensorlease._core.Watch",
	.basicsize = sizeof(struct watch),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC,
	.slots = slots,
};

int watch_init(PyObject *module)
{
	(void)module;
	watch_type = (PyTypeObject *)PyType_FromSpec(&spec);
	return watch_type ? 0 : -1;
}
