/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of the Client that make one request each, and give the GIL up while the daemon answers.
 */
#include <errno.h>

#include "lock.h"
#include "request.h"
#include "wait.h"

const char kick_doc[] =
	"kick($self, client_id, /)\n--\n\n"
	"Disconnects the client with that id, an int of clients(). Its calls raise KickedError until it is closed.\n"
	"What it holds stays its own. NotFoundError: no other client with that id is connected.\n"
	"PermissionDeniedError: it is another user's; root and the daemon's user may do this.";

const char kick_user_doc[] =
	"kick_user($self, uid, /)\n--\n\n"
	"Disconnects all other clients of a user, as kick() does, and returns how many. NotFoundError: there is none.";

/* A request, and the place for its answer. */
struct request {
	int (*call)(struct request *q, tl_client *client);
	const char *name;
	uint64_t number;
	uint32_t count;
};

/* Returns 0, or -1 with an exception. */
static int ask(PyObject *self, struct request *q)
{
	struct client *c = (struct client *)self;
	int r;

	if (!client_begin(c))
		return -1;
	Py_BEGIN_ALLOW_THREADS;
	r = q->call(q, c->client);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	client_end(c);
	return r ? -1 : 0;
}

static PyObject *ask_for_none(PyObject *self, struct request *q)
{
	if (ask(self, q))
		return NULL;
	Py_RETURN_NONE;
}

static int call_delete(struct request *q, tl_client *client)
{
	return q->number ? tl_delete_version(client, q->name, q->number)
			 : tl_delete(client, q->name);
}

static int call_unclaim(struct request *q, tl_client *client)
{
	tl_unclaim(client, q->name);
	return 0;
}

static int call_kick(struct request *q, tl_client *client)
{
	return tl_kick(client, q->number);
}

static int call_kick_user(struct request *q, tl_client *client)
{
	return tl_kick_user(client, (uint32_t)q->number, &q->count);
}

static int call_uid(struct request *q, tl_client *client)
{
	tl_user_info info = { .size = sizeof(info) };
	int r = tl_get_user(client, UINT32_MAX, &info);

	q->count = info.uid;
	return r;
}

/* _delete(name, version), which is 0 if it does not matter */
PyObject *client_delete(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct request q = { .call = call_delete };
	PyObject *name, *version;

	if (!PyArg_ParseTuple(args, "OO", &name, &version))
		return NULL;
	q.name = name_utf8(name);
	return q.name && !parse_uint64("version", version, &q.number) ? ask_for_none(self, &q)
								      : NULL;
}

PyObject *client_unclaim(PyObject *self, PyObject *name)
{
	WITH_LOCK;
	struct request q = { .call = call_unclaim, .name = name_utf8(name) };
	struct client *c = (struct client *)self;

	if (!q.name)
		return NULL;
	if (!c->client || c->closing)
		Py_RETURN_NONE;
	return ask_for_none(self, &q);
}

PyObject *client_kick(PyObject *self, PyObject *id)
{
	WITH_LOCK;
	struct request q = { .call = call_kick };

	return parse_uint64("client_id", id, &q.number) ? NULL : ask_for_none(self, &q);
}

PyObject *client_kick_user(PyObject *self, PyObject *uid)
{
	WITH_LOCK;
	struct request q = { .call = call_kick_user };

	if (parse_uint64("uid", uid, &q.number))
		return NULL;
	if (q.number >= UINT32_MAX)
		return raise_text(-EINVAL, "uid must be below 2^32 - 1");
	return ask(self, &q) ? NULL : PyLong_FromUnsignedLong(q.count);
}

PyObject *client_uid(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct request q = { .call = call_uid };

	(void)unused;
	return ask(self, &q) ? NULL : PyLong_FromUnsignedLong(q.count);
}

PyObject *client_claim(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	tl_claim_options options = { .size = sizeof(options) };
	struct client *c = (struct client *)self;
	int64_t timeout_ns, end, left;
	PyObject *name, *timeout, *held;
	const char *text;
	int r = -EBUSY;

	if (!PyArg_ParseTuple(args, "OOO!", &name, &timeout, &PyList_Type, &held))
		return NULL;
	text = name_utf8(name);
	if (!text || parse_seconds("timeout", timeout, &timeout_ns) || !client_begin(c))
		return NULL;
	end = wait_end(timeout_ns);
	do {
		left = wait_left(end);
		options.timeout_ns = left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
		Py_BEGIN_ALLOW_THREADS;
		r = tl_claim(c->client, text, &options);
		Py_END_ALLOW_THREADS;
		if (r && r != -EEXIST && r != -EBUSY && r != -ETIMEDOUT && r != -EINTR)
			raise_error(r);
		else if (c->closing)
			wait_closed("a get_or_put");
		else
			PyErr_CheckSignals();
	} while (!PyErr_Occurred() && r && r != -EEXIST && left);
	if (!r && (PyErr_Occurred() || PyList_Append(held, Py_True))) { /* nobody else would give it
									   up */
		Py_BEGIN_ALLOW_THREADS;
		tl_unclaim(c->client, text);
		Py_END_ALLOW_THREADS;
	}
	client_end(c);
	if (PyErr_Occurred())
		return NULL;
	return Py_NewRef(!r ? Py_True : r == -EEXIST ? Py_False : Py_None);
}
