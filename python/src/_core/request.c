/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of the Client that make one request each, and give the GIL up while the daemon answers.
 * Descriptions are tuples, which _client.py turns into named ones.
 */
#include <errno.h>
#include <string.h>
#include <tensorlease/cuda.h>

#include <tensorlease/stream.h>

#include "client.h"
#include "cuda.h"
#include "draft.h"
#include "lock.h"
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

/* Returns the texts of a tuple of names, for PyMem_Free(), or NULL with an exception. */
static const char **names_utf8(PyObject *names)
{
	Py_ssize_t n = PyTuple_Size(names);
	const char **texts = PyMem_Calloc((size_t)n + 1, sizeof(*texts));

	if (!texts)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; texts && i < n; i++) {
		texts[i] = name_utf8(PyTuple_GetItem(names, i));
		if (!texts[i]) {
			PyMem_Free(texts);
			return NULL;
		}
	}
	return texts;
}

PyObject *client_unclaim(PyObject *self, PyObject *names)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	const char **texts = names_utf8(names);

	if (!texts)
		return NULL;
	if (c->client && !c->closing && client_begin(c)) {
		Py_BEGIN_ALLOW_THREADS;
		tl_unclaim_many(c->client, texts, (size_t)PyTuple_Size(names));
		Py_END_ALLOW_THREADS;
		client_end(c);
	}
	PyMem_Free(texts);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
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

/* Without space for one more claim the caller does without: a claim only saves work. */
static PyObject *claimed(int r)
{
	bool ours = !r || r == -ENOSPC || r == -EDQUOT;

	return Py_NewRef(ours ? Py_True : r == -EEXIST ? Py_False : Py_None);
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
	/* Nobody else would give it up. */
	if (!r && (PyErr_Occurred() || PyList_Append(held, name))) {
		Py_BEGIN_ALLOW_THREADS;
		tl_unclaim(c->client, text);
		Py_END_ALLOW_THREADS;
	}
	client_end(c);
	if (PyErr_Occurred())
		return NULL;
	return claimed(r);
}

/* Gives up what was claimed after an exception. */
static void unclaim_many(tl_client *client, const char *const *names, Py_ssize_t n,
			 const int *outcomes)
{
	Py_BEGIN_ALLOW_THREADS;
	for (Py_ssize_t i = 0; i < n; i++)
		if (!outcomes[i])
			tl_unclaim(client, names[i]);
	Py_END_ALLOW_THREADS;
}

/* Claims the names, of which @held gets those that are ours. Returns a list, or NULL. */
static PyObject *claim_many(struct client *c, PyObject *names, const char **texts, int *outcomes,
			    PyObject *held)
{
	Py_ssize_t n = PyTuple_Size(names), had = PyList_Size(held);
	PyObject *all;
	int r;

	Py_BEGIN_ALLOW_THREADS;
	r = tl_claim_many(c->client, texts, (size_t)n, outcomes);
	Py_END_ALLOW_THREADS;
	if (r)
		return raise_error(r);
	all = PyErr_CheckSignals() ? NULL : PyList_New(n);
	for (Py_ssize_t i = 0; all && i < n; i++) {
		PyList_SetItem(all, i, claimed(outcomes[i]));
		if (!outcomes[i] && PyList_Append(held, PyTuple_GetItem(names, i)))
			Py_CLEAR(all);
	}
	if (!all) {
		PyList_SetSlice(held, had, PyList_Size(held), NULL);
		unclaim_many(c->client, texts, n, outcomes);
	}
	return all;
}

PyObject *client_claim_many(PyObject *self, PyObject *args)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	PyObject *names, *held, *all = NULL;
	const char **texts;
	int *outcomes;

	if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &names, &PyList_Type, &held))
		return NULL;
	texts = names_utf8(names);
	if (!texts)
		return NULL;
	outcomes = PyMem_Calloc((size_t)PyTuple_Size(names) + 1, sizeof(*outcomes));
	if (!outcomes) {
		PyErr_NoMemory();
	} else if (client_begin(c)) {
		all = claim_many(c, names, texts, outcomes, held);
		client_end(c);
	}
	PyMem_Free(texts);
	PyMem_Free(outcomes);
	return all;
}

/* ---- Descriptions ---- */

/* The text may have any bytes, or be cut within a character. */
static PyObject *text_of(const char *text)
{
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *identity_tuple(const tl_identity *who)
{
	if (!who->id)
		Py_RETURN_NONE;
	return Py_BuildValue("(KNkkKN)", (unsigned long long)who->id, text_of(who->label),
			     (unsigned long)who->pid, (unsigned long)who->uid,
			     (unsigned long long)who->since_ns, PyBool_FromLong(who->gone));
}

static PyObject *info_tuple(const tl_info *info)
{
	return Py_BuildValue(
		"(sKNNKKNky#NNNNNkN)", info->name, (unsigned long long)info->version,
		shape_tuple(info->ndim, info->shape), dtype_text(info->dtype),
		(unsigned long long)info->nbytes, (unsigned long long)info->committed_ns,
		device_text(info->device), (unsigned long)info->uid, (const char *)info->metadata,
		(Py_ssize_t)info->metadata_size,
		info->device.device_type == kDLCPU ? Py_NewRef(Py_None)
						   : uuid_text("GPU-", info->device_uuid),
		PyBool_FromLong(info->lost),
		PyBool_FromLong(info->lifetime & TL_LIFETIME_OWNER_BOUND),
		PyBool_FromLong(info->lifetime & TL_LIFETIME_EVICTABLE),
		info->ttl_ns ? PyFloat_FromDouble((double)info->ttl_ns / 1e9) : Py_NewRef(Py_None),
		(unsigned long)info->ring, identity_tuple(&info->publisher));
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
		raise_missing(c, text, r);
	client_end(c);
	return r;
}

PyObject *look_stat(PyObject *self, PyObject *name)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };

	return stat_name((struct client *)self, name, &info) ? NULL : info_tuple(&info);
}

int look_contains(PyObject *self, PyObject *name)
{
	WITH_LOCK;
	tl_info info = { .size = sizeof(info) };
	int r;

	r = stat_name((struct client *)self, name, &info);
	if (!r)
		return 1;
	if (r != -ENOENT && r != -EINVAL)
		return -1;
	PyErr_Clear();
	return 0;
}

/* ---- Listings: the library calls back without the GIL, which is taken for many items at once ----
 */

enum { BATCH = 128 };

struct listing {
	PyObject *list;
	PyThreadState *thread;
	PyObject *(*make)(const void *item);
	size_t size; /* of an item */
	size_t count;
	unsigned char *batch;
};

static PyObject *make_info(const void *item)
{
	return info_tuple(item);
}

static PyObject *make_client(const void *item)
{
	const tl_client_info *info = item;

	return Py_BuildValue(
		"(KNkkkkKKKK)", (unsigned long long)info->id, text_of(info->label),
		(unsigned long)info->pid, (unsigned long)info->uid, (unsigned long)info->gid,
		(unsigned long)info->drafts, (unsigned long long)info->leases,
		(unsigned long long)info->tensors_held, (unsigned long long)info->bytes_held,
		(unsigned long long)info->since_ns);
}

static PyObject *limit(uint64_t bytes)
{
	if (bytes == UINT64_MAX)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *make_device(const void *item)
{
	const tl_device_usage *usage = item;

	return Py_BuildValue("(NKNNk)", uuid_text("GPU-", usage->uuid),
			     (unsigned long long)usage->bytes_used, limit(usage->capacity),
			     limit(usage->user_capacity), (unsigned long)usage->segments);
}

static PyObject *make_reader(const void *item)
{
	const tl_reader *reader = item;

	return Py_BuildValue("(sNK)", reader->name, identity_tuple(&reader->client),
			     (unsigned long long)reader->leases);
}

static PyObject *make_holding(const void *item)
{
	const tl_holding *holding = item;

	return Py_BuildValue("(sKKKO)", holding->name, (unsigned long long)holding->version,
			     (unsigned long long)holding->nbytes,
			     (unsigned long long)holding->leases,
			     holding->retired ? Py_True : Py_False);
}

static PyObject *make_stream(const void *item)
{
	static const char *const modes[] = { "", "broadcast", "queue" };
	const tl_stream_info *i = item;

	return Py_BuildValue(
		"(sskkkNNkkkkNNdKKKKK)", i->name, i->mode <= 2 ? modes[i->mode] : "",
		(unsigned long)i->depth, (unsigned long)i->keep, (unsigned long)i->max_tries,
		PyBool_FromLong(i->flags & TL_STREAM_DROP_OLDEST),
		PyBool_FromLong(i->flags & TL_STREAM_SHARED), (unsigned long)i->uid,
		(unsigned long)i->producers, (unsigned long)i->subscribers, (unsigned long)i->rows,
		PyBool_FromLong(i->ended), PyBool_FromLong(i->lifetime & TL_LIFETIME_OWNER_BOUND),
		(double)i->ttl_ns / (double)NS_PER_SEC, (unsigned long long)i->first,
		(unsigned long long)i->next, (unsigned long long)i->length,
		(unsigned long long)i->bytes, (unsigned long long)i->created_ns);
}

static PyObject *make_member(const void *item)
{
	static const char *const roles[] = { "", "producer", "subscriber", "lossy" };
	static const char *const states[] = { "", "live", "joining", "gone" };
	const tl_member_info *i = item;

	return Py_BuildValue(
		"(kssKKKkkkN)", (unsigned long)i->number, i->role <= 3 ? roles[i->role] : "",
		i->state <= 3 ? states[i->state] : "", (unsigned long long)i->client,
		(unsigned long long)i->position, (unsigned long long)i->lag, (unsigned long)i->held,
		(unsigned long)i->pid, (unsigned long)i->uid, text_of(i->label));
}

/* Needs the GIL. Returns 0, or -1 with an exception. */
static int append_batch(struct listing *l)
{
	int r = 0;

	for (size_t i = 0; !r && i < l->count; i++) {
		PyObject *item = l->make(l->batch + i * l->size);

		r = item ? PyList_Append(l->list, item) : -1;
		Py_XDECREF(item);
	}
	l->count = 0;
	return r;
}

static int visit(struct listing *l, const void *item)
{
	int r;

	memcpy(l->batch + l->count++ * l->size, item, l->size);
	if (l->count < BATCH)
		return 0;
	PyEval_RestoreThread(l->thread);
	r = append_batch(l);
	l->thread = PyEval_SaveThread();
	return r ? 1 : 0;
}

static int visit_info(const tl_info *info, void *context)
{
	return visit(context, info);
}

static int visit_client(const tl_client_info *info, void *context)
{
	return visit(context, info);
}

static int visit_device(const tl_device_usage *usage, void *context)
{
	return visit(context, usage);
}

static int visit_holding(const tl_holding *holding, void *context)
{
	return visit(context, holding);
}

static int visit_reader(const tl_reader *reader, void *context)
{
	return visit(context, reader);
}

static int visit_stream(const tl_stream_info *info, void *context)
{
	return visit(context, info);
}

static int visit_member(const tl_member_info *info, void *context)
{
	return visit(context, info);
}

/* Returns false with an exception. */
static bool listing_begin(struct listing *l, struct client *c)
{
	l->list = PyList_New(0);
	l->batch = PyMem_Malloc(BATCH * l->size);
	if (l->list && !l->batch)
		PyErr_NoMemory();
	if (l->list && l->batch && client_begin(c)) {
		l->thread = PyEval_SaveThread();
		return true;
	}
	Py_XDECREF(l->list);
	PyMem_Free(l->batch);
	return false;
}

/* Returns the list, or NULL with an exception. @r is the library's result; 1 means that a visit
 * raised. */
static PyObject *listing_end(struct listing *l, struct client *c, int r)
{
	PyEval_RestoreThread(l->thread);
	if (r < 0)
		raise_error(r);
	client_end(c);
	if (!r)
		r = append_batch(l);
	PyMem_Free(l->batch);
	if (r)
		Py_CLEAR(l->list);
	return l->list;
}

PyObject *look_list(PyObject *self, PyObject *prefix)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_info, .size = sizeof(tl_info) };
	const char *text = text_utf8("prefix", prefix);

	if (!text || !listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list(c->client, text, visit_info, &l));
}

PyObject *look_clients(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_client, .size = sizeof(tl_client_info) };

	(void)unused;
	if (!listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list_clients(c->client, visit_client, &l));
}

PyObject *look_devices(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_device, .size = sizeof(tl_device_usage) };

	(void)unused;
	if (!listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list_devices(c->client, visit_device, &l));
}

PyObject *look_readers(PyObject *self, PyObject *name)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_reader, .size = sizeof(tl_reader) };
	const char *text = name == Py_None ? NULL : name_utf8(name);

	if ((name != Py_None && !text) || !listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list_readers(c->client, text, visit_reader, &l));
}

PyObject *look_holdings(PyObject *self, PyObject *id)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_holding, .size = sizeof(tl_holding) };
	uint64_t number;

	if (parse_uint64("client_id", id, &number) || !listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list_holdings(c->client, number, visit_holding, &l));
}

PyObject *look_streams(PyObject *self, PyObject *prefix)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_stream, .size = sizeof(tl_stream_info) };
	const char *text = text_utf8("prefix", prefix);

	if (!text || !listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list_streams(c->client, text, visit_stream, &l));
}

PyObject *look_members(PyObject *self, PyObject *name)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	struct listing l = { .make = make_member, .size = sizeof(tl_member_info) };
	const char *text = name_utf8(name);

	if (!text || !listing_begin(&l, c))
		return NULL;
	return listing_end(&l, c, tl_list_members(c->client, text, visit_member, &l));
}

PyObject *look_stream(PyObject *self, PyObject *name)
{
	WITH_LOCK;
	struct client *c = (struct client *)self;
	tl_stream_info info = { .size = sizeof(info) };
	const char *text = name_utf8(name);
	int r;

	if (!text || !client_begin(c))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_stream_stat(c->client, text, &info);
	Py_END_ALLOW_THREADS;
	if (r)
		raise_error(r);
	client_end(c);
	return r ? NULL : make_stream(&info);
}

PyObject *look_status(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
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
	return Py_BuildValue(
		"(NKKKKKkkkkkkkkKKKKNkkkkN)", PyUnicode_DecodeFSDefault(s.address),
		(unsigned long long)s.started_ns, (unsigned long long)s.capacity,
		(unsigned long long)s.bytes_used, (unsigned long long)s.bytes_warm,
		(unsigned long long)s.commits, (unsigned long)s.tensors, (unsigned long)s.retired,
		(unsigned long)s.drafts, (unsigned long)s.segments, (unsigned long)s.clients,
		(unsigned long)s.max_tensors, (unsigned long)s.max_clients,
		(unsigned long)s.daemon_pid, (unsigned long long)s.bytes_kept,
		(unsigned long long)s.longest_turn_ns, (unsigned long long)s.restarts,
		(unsigned long long)s.restart_ns, text_of(s.restart_reason),
		(unsigned long)s.keeper, (unsigned long)s.rings, (unsigned long)s.ring_slots,
		(unsigned long)s.retyped, text_of(s.retyped_name));
}
