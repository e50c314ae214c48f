/* SPDX-License-Identifier: Apache-2.0 */
/* Looking around: methods of the Client that return tuples, which _client.py gives names. */
#include <errno.h>
#include <string.h>

#include "look.h"

static PyObject *info_tuple(const tl_info *info)
{
	return Py_BuildValue("(sKNNKKNky#)", info->name, (unsigned long long)info->version,
			     shape_tuple(info->ndim, info->shape), dtype_text(info->dtype),
			     (unsigned long long)info->nbytes,
			     (unsigned long long)info->committed_ns, device_text(info->device),
			     (unsigned long)info->uid, (const char *)info->metadata,
			     (Py_ssize_t)info->metadata_size);
}

static int stat_name(struct client *c, PyObject *name, tl_info *info)
{
	const char *text = name_utf8(name);
	int r;

	if (!text)
		return PyErr_ExceptionMatches(PyExc_ValueError) ? -EINVAL : 1;
	if (!client_begin(c))
		return 1;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_stat(c->client, text, info);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	client_end(c);
	return r;
}

PyObject *look_stat(PyObject *self, PyObject *name)
{
	tl_info info;

	return stat_name((struct client *)self, name, &info) ? NULL : info_tuple(&info);
}

int look_contains(PyObject *self, PyObject *name)
{
	tl_info info;
	int r = stat_name((struct client *)self, name, &info);

	if (!r)
		return 1;
	if (r != -ENOENT && r != -EINVAL)
		return -1;
	PyErr_Clear();
	return 0;
}

/* A listing: the library calls back without the GIL. */
struct listing {
	PyObject *list;
	PyThreadState *thread;
};

static int append(struct listing *l, PyObject *item)
{
	int r = item ? PyList_Append(l->list, item) : -1;

	Py_XDECREF(item);
	return r;
}

static int visit_info(const tl_info *info, void *context)
{
	struct listing *l = context;
	int r;

	PyEval_RestoreThread(l->thread);
	r = append(l, info_tuple(info));
	l->thread = PyEval_SaveThread();
	return r ? 1 : 0;
}

static int visit_client(const tl_client_info *info, void *context)
{
	struct listing *l = context;
	int r;

	PyEval_RestoreThread(l->thread);
	r = append(l, Py_BuildValue("(KskkkkKKK)", (unsigned long long)info->id, info->label,
				    (unsigned long)info->pid, (unsigned long)info->uid,
				    (unsigned long)info->gid, (unsigned long)info->drafts,
				    (unsigned long long)info->leases,
				    (unsigned long long)info->tensors_held,
				    (unsigned long long)info->bytes_held));
	l->thread = PyEval_SaveThread();
	return r ? 1 : 0;
}

static int visit_holding(const tl_holding *holding, void *context)
{
	struct listing *l = context;
	int r;

	PyEval_RestoreThread(l->thread);
	r = append(l, Py_BuildValue("(sKKKO)", holding->name, (unsigned long long)holding->version,
				    (unsigned long long)holding->nbytes,
				    (unsigned long long)holding->leases,
				    holding->retired ? Py_True : Py_False));
	l->thread = PyEval_SaveThread();
	return r ? 1 : 0;
}

/* With the GIL again: the list, or an exception. @r is what the library said; 1: a visit raised. */
static PyObject *listed(struct client *c, struct listing *l, int r)
{
	if (r < 0)
		raise_error(r);
	client_end(c);
	if (!r)
		return l->list;
	Py_DECREF(l->list);
	return NULL;
}

PyObject *look_list(PyObject *self, PyObject *prefix)
{
	struct client *c = (struct client *)self;
	const char *text = name_utf8(prefix);
	struct listing l = { .list = PyList_New(0) };
	int r;

	if (!text || !l.list || !client_begin(c)) {
		Py_XDECREF(l.list);
		return NULL;
	}
	l.thread = PyEval_SaveThread();
	r = tl_list(c->client, text, visit_info, &l);
	PyEval_RestoreThread(l.thread);
	return listed(c, &l, r);
}

PyObject *look_clients(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;
	struct listing l = { .list = PyList_New(0) };
	int r;

	(void)unused;
	if (!l.list || !client_begin(c)) {
		Py_XDECREF(l.list);
		return NULL;
	}
	l.thread = PyEval_SaveThread();
	r = tl_list_clients(c->client, visit_client, &l);
	PyEval_RestoreThread(l.thread);
	return listed(c, &l, r);
}

PyObject *look_holdings(PyObject *self, PyObject *id)
{
	struct client *c = (struct client *)self;
	unsigned long long number = PyLong_AsUnsignedLongLong(id);
	struct listing l = { 0 };
	int r;

	if (PyErr_Occurred())
		return NULL;
	l.list = PyList_New(0);
	if (!l.list || !client_begin(c)) {
		Py_XDECREF(l.list);
		return NULL;
	}
	l.thread = PyEval_SaveThread();
	r = tl_list_holdings(c->client, number, visit_holding, &l);
	PyEval_RestoreThread(l.thread);
	return listed(c, &l, r);
}

PyObject *look_status(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;
	tl_status s = { .size = sizeof(s) };
	int r;

	(void)unused;
	if (!client_begin(c))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_get_status(c->client, &s);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	client_end(c);
	if (r)
		return NULL;
	return Py_BuildValue("(sKKKKKkkkkkkkk)", s.address, (unsigned long long)s.started_ns,
			     (unsigned long long)s.capacity, (unsigned long long)s.bytes_used,
			     (unsigned long long)s.bytes_warm, (unsigned long long)s.commits,
			     (unsigned long)s.tensors, (unsigned long)s.retired,
			     (unsigned long)s.drafts, (unsigned long)s.segments,
			     (unsigned long)s.clients, (unsigned long)s.max_tensors,
			     (unsigned long)s.max_clients, (unsigned long)s.daemon_pid);
}
