/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of the Client, by the file that has them. */
#pragma once

#include "core.h"

/* ---- publish.c: publishing one tensor ---- */

extern const char put_doc[];

PyObject *client_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
/* _publish(name, tensor, ...) -> (version, copied) */
PyObject *client_publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
/*
 * _create(name, shape, (code, bits, lanes), flags, metadata, timeout, GPU or -1,
 *         (ttl, owner_bound, evictable), ring, own_pages) -> Draft
 */
PyObject *client_create(PyObject *self, PyObject *args);

/* ---- many.c: groups, behind put_many() and get_many() of _client.py ---- */

PyObject *many_put(PyObject *self, PyObject *args);
/* _publish_many(names, arrays, metadata, timeout, (ttl, owner_bound, evictable), stream, sealed) ->
 * number of copied arrays; as _put_many(), with the same metadata for each */
PyObject *many_publish(PyObject *self, PyObject *args);
PyObject *many_get(PyObject *self, PyObject *args);
PyObject *many_get_all(PyObject *self, PyObject *args);
PyObject *many_gather(PyObject *self, PyObject *args);

/* ---- request.c: one request each: claims, deletes, kicks, descriptions ---- */

extern const char kick_doc[], kick_user_doc[];

/* _claim(name, timeout, held) -> True: the claim is ours. False: the name is published. None:
 * another client still has the claim at the end of the time. */
PyObject *client_claim(PyObject *self, PyObject *args);
/* _claim_many(names, held) -> [what _claim() returns for each, without waiting]. It is True too
 * where there is no space for a claim, and None for one that was refused. The list `held` gets the
 * names that are ours. */
PyObject *client_claim_many(PyObject *self, PyObject *args);
/* _unclaim(*names); a client that is closed has no claims. */
PyObject *client_unclaim(PyObject *self, PyObject *names);
PyObject *client_delete(PyObject *self, PyObject *args);
PyObject *client_kick(PyObject *self, PyObject *id);
PyObject *client_kick_user(PyObject *self, PyObject *uid);
/* _uid(), by which the daemon knows this client's user: in a user namespace it is another number
 * than geteuid(). */
PyObject *client_uid(PyObject *self, PyObject *unused);
PyObject *look_stat(PyObject *self, PyObject *name);
PyObject *look_list(PyObject *self, PyObject *prefix);
PyObject *look_status(PyObject *self, PyObject *unused);
PyObject *look_devices(PyObject *self, PyObject *unused);
PyObject *look_clients(PyObject *self, PyObject *unused);
PyObject *look_readers(PyObject *self, PyObject *name);
PyObject *look_holdings(PyObject *self, PyObject *id);
PyObject *look_streams(PyObject *self, PyObject *prefix);
PyObject *look_stream(PyObject *self, PyObject *name);
PyObject *look_members(PyObject *self, PyObject *name); /* of a stream */
int look_contains(PyObject *self, PyObject *name);

/* ---- file.c: files, behind load() and save() of _client.py ---- */

PyObject *file_load(PyObject *self, PyObject *args);
PyObject *file_save(PyObject *self, PyObject *args);

/* ---- watch.c: the object behind Client.watch() and Client.events() ---- */

/*
 * _watch(name, prefix: bool, new: bool) -> a _core.Watch: next(timeout) -> (what, name, version,
 * skipped), or None if nothing happens in time; fileno(); close().
 */
PyObject *client_watch(PyObject *self, PyObject *args);
/* Closes the watches that ended during the client's tl_close(), which is over. */
void watches_close_ended(struct client *c);

int watch_init(PyObject *module);

/* ---- stream.c: the objects behind Client.stream() ---- */

/* _stream(name, mode, depth, keep, max_tries, flags) -> a _core.Stream */
PyObject *client_stream(PyObject *self, PyObject *args);
int stream_init(PyObject *module);
