/* SPDX-License-Identifier: Apache-2.0 */
/* Waits in slices, between which it looks for Ctrl-C and close(). */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "draft.h"
#include "lock.h"
#include "wait.h"

#define CHANGING_SLICE_NS INT64_C(10000000)

int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_SEC + ts.tv_nsec;
}

int64_t wait_end(int64_t timeout_ns)
{
	return timeout_ns < 0 ? INT64_MAX : now_ns() + timeout_ns;
}

int64_t wait_left(int64_t end)
{
	int64_t left = end == INT64_MAX ? INT64_MAX : end - now_ns();

	return left > 0 ? left : 0;
}

int wait_closed(const char *what)
{
	PyErr_Format(PyExc_ValueError, "the client was closed during %s", what);
	return -1;
}

/* Returns whether waiting may change the result of a look. */
bool worth_waiting(int r)
{
	return r == -ENOENT || r == -EAGAIN || r == -ENOTCONN || r == -ECONNREFUSED ||
	       r == -ETIMEDOUT || r == -EINTR;
}

/*
 * Waits in slices of a second, because a signal that comes between PyErr_CheckSignals() and the
 * sleep does not end the sleep. If the names exist, but change too fast to be got together, it
 * looks again after some milliseconds. Without a daemon a slice ends with -ENOTCONN, which is
 * raised if it was the last one.
 */
int client_wait(struct client *c, const struct wait *w, int64_t timeout_ns)
{
	int64_t end = wait_end(timeout_ns);
	uint32_t over = __atomic_load_n(&c->over, __ATOMIC_SEQ_CST);
	bool changing = false;
	char why[1024] = ""; /* there is no daemon */

	if (c->closing) /* it closed since the first look */
		return wait_closed("a get");
	for (;;) {
		int64_t left = wait_left(end);
		int64_t slice = changing ? CHANGING_SLICE_NS : NS_PER_SEC;
		size_t which;
		bool looked;
		int r;

		if (!left && *why)
			raise_text(-ENOTCONN, "%s", why);
		if (!left)
			return *why ? -1 : 1;
		Py_BEGIN_ALLOW_THREADS;
		r = tl_wait_many(c->client, &w->item, !changing,
				 &TL_INIT(tl_wait_options,
					  .timeout_ns = left < slice ? left : slice,
					  .interrupt = &c->over, .interrupt_value = over),
				 &which);
		looked = !r || (r == -ETIMEDOUT && changing);
		if (looked)
			r = w->look(w->context);
		Py_END_ALLOW_THREADS;
		if (!r)
			return 0;
		if (r == -ECANCELED || c->closing)
			return wait_closed("a get");
		snprintf(why, sizeof(why), "%s", r == -ENOTCONN ? tl_last_error() : "");
		changing = r == -EAGAIN && w->item.flags & TL_WAIT_PREFIX;
		if (!worth_waiting(r) && (r != -ENODATA || w->item.flags & TL_WAIT_PREFIX)) {
			if (looked && w->why && *w->why)
				raise_text(r, "%s", w->why);
			else
				raise_error(r);
			return -1;
		}
		if (PyErr_CheckSignals())
			return -1;
	}
}

enum { STARTED_TEXT = 64 };

static void started_text(struct client *c, int64_t began_ns, char text[STARTED_TEXT])
{
	tl_status status = { .size = sizeof(status) };
	struct timespec now;
	uint64_t age;

	*text = '\0';
	if (tl_get_status(c->client, &status))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	age = (uint64_t)(now.tv_sec * NS_PER_SEC + now.tv_nsec) - status.started_ns;
	if (age >= (uint64_t)(now_ns() - began_ns)) /* a wait may end later than it should */
		return;
	PyOS_snprintf(text, STARTED_TEXT, "; the daemon was started %.1f s ago", (double)age / 1e9);
}

int wait_late(struct client *c, const char *name, uint64_t newer_than, int64_t timeout_ns,
	      int64_t began_ns)
{
	tl_info info = { .size = sizeof(info) };
	double seconds = (double)timeout_ns / 1e9;
	char started[STARTED_TEXT];
	int r;

	Py_BEGIN_ALLOW_THREADS;
	r = newer_than ? tl_stat(c->client, name, &info) : 0;
	started_text(c, began_ns, started);
	Py_END_ALLOW_THREADS;
	if (!newer_than)
		raise_text(-ETIMEDOUT, "no tensor '%s' came within %g s%s%s", name, seconds,
			   started, draft_hint(c, name));
	else if (r)
		raise_text(-ETIMEDOUT, "no version of '%s' above %llu came within %g s: %s%s", name,
			   (unsigned long long)newer_than, seconds, tl_last_error(), started);
	else
		raise_text(-ETIMEDOUT,
			   "no version of '%s' above %llu came within %g s: it has version %llu%s",
			   name, (unsigned long long)newer_than, seconds,
			   (unsigned long long)info.version, started);
	return -1;
}

int wait_late_prefix(struct client *c, const char *prefix, int64_t timeout_ns, int64_t began_ns)
{
	char started[STARTED_TEXT];

	Py_BEGIN_ALLOW_THREADS;
	started_text(c, began_ns, started);
	Py_END_ALLOW_THREADS;
	raise_text(-ETIMEDOUT, "no tensor came below '%s' within %g s%s", prefix,
		   (double)timeout_ns / 1e9, started);
	return -1;
}

PyObject *client_late(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	PyObject *newer, *timeout;
	uint64_t newer_than;
	const char *name;
	double began;
	int64_t ns;

	if (!PyArg_ParseTuple(args, "sOOd", &name, &newer, &timeout, &began) ||
	    parse_uint64("newer_than", newer, &newer_than) ||
	    parse_seconds("timeout", timeout, &ns) || !client_begin(c))
		return NULL;
	wait_late(c, name, newer_than, ns, (int64_t)(began * (double)NS_PER_SEC));
	client_end(c);
	return NULL;
}

/* A full GPU is -ENOMEM. */
static bool lacks_space(int r)
{
	return r == -ENOSPC || r == -EDQUOT || r == -ENOMEM;
}

/*
 * Only a refusal at the end of a slice means that the attempt waited for space. An earlier one is
 * final, as for a size that never fits.
 */
int client_with_space(struct client *c, attempt_fn *attempt, void *context, int64_t timeout_ns)
{
	bool had_space = false;
	int64_t end;
	int once;

	if (!timeout_ns) { /* without a look at the clock */
		Py_BEGIN_ALLOW_THREADS;
		once = attempt(context, 0, &had_space);
		Py_END_ALLOW_THREADS;
		return once;
	}
	end = wait_end(timeout_ns);
	for (;;) {
		int64_t began = now_ns(), left = wait_left(end);
		int64_t slice = left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
		int r;

		Py_BEGIN_ALLOW_THREADS;
		r = attempt(context, slice, &had_space);
		Py_END_ALLOW_THREADS;
		if (!lacks_space(r) || had_space || slice == left || now_ns() - began < slice / 2)
			return r;
		if (c->closing) {
			wait_closed("a wait for space");
			return 1;
		}
		if (PyErr_CheckSignals())
			return 1;
	}
}

/* ---- Waiting for many, for the thread behind aget() ---- */

/* Converts [(name, newer_than), ...]; @names keeps the texts alive. */
static tl_wait_item *wait_items(PyObject *list, Py_ssize_t *count)
{
	tl_wait_item *items;

	*count = PyTuple_Size(list);
	if (*count < 0)
		return NULL;
	items = PyMem_Calloc((size_t)(*count ? *count : 1), sizeof(*items));
	for (Py_ssize_t i = 0; items && i < *count; i++) {
		PyObject *pair = PyTuple_GetItem(list, i);
		PyObject *name = PyTuple_GetItem(pair, 0), *newer = PyTuple_GetItem(pair, 1);

		if (!name || !newer || !(items[i].name = name_utf8(name)))
			break;
		items[i].newer_than = PyLong_AsUnsignedLongLong(newer);
	}
	if (!items)
		PyErr_NoMemory();
	else if (!PyErr_Occurred())
		return items;
	PyMem_Free(items);
	return NULL;
}

PyObject *client_wait_many(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	PyObject *list, *timeout;
	tl_wait_item *items;
	unsigned int word;
	Py_ssize_t count;
	size_t which = 0;
	int64_t ns;
	int r;

	if (!PyArg_ParseTuple(args, "O!IO", &PyTuple_Type, &list, &word, &timeout) ||
	    parse_seconds("timeout", timeout, &ns) || !client_begin(c))
		return NULL;
	items = wait_items(list, &count);
	if (!items) {
		client_end(c);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS;
	r = tl_wait_many(c->client, items, (size_t)count,
			 &TL_INIT(tl_wait_options, .timeout_ns = ns, .interrupt = &c->rescan,
				  .interrupt_value = word),
			 &which);
	Py_END_ALLOW_THREADS;
	PyMem_Free(items);
	if (r && r != -ECANCELED && r != -EINTR && r != -ETIMEDOUT)
		raise_error(r);
	client_end(c);
	if (!r)
		return PyLong_FromSize_t(which);
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

void wait_wake(uint32_t *word)
{
	__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

PyObject *client_wake(PyObject *self, PyObject *unused)
{
	(void)unused;
	wait_wake(&((struct client *)self)->rescan);
	Py_RETURN_NONE;
}

PyObject *client_wake_word(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLong(
		__atomic_load_n(&((struct client *)self)->rescan, __ATOMIC_SEQ_CST));
}
