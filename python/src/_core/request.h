/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of the Client that make one request: they claim and delete names, disconnect
 * clients, and ask who we are.
 */
#pragma once

#include "core.h"

extern const char kick_doc[], kick_user_doc[];

/* _claim(name, timeout, held) -> True: the claim is ours. False: the name is published. None:
 * another client still has the claim at the end of the time. */
PyObject *client_claim(PyObject *self, PyObject *args);
/* _unclaim(name); a client that is closed has no claims. */
PyObject *client_unclaim(PyObject *self, PyObject *name);
PyObject *client_delete(PyObject *self, PyObject *args);
PyObject *client_kick(PyObject *self, PyObject *id);
PyObject *client_kick_user(PyObject *self, PyObject *uid);
/* _uid(), by which the daemon knows this client's user: in a user namespace it is another number
 * than geteuid(). */
PyObject *client_uid(PyObject *self, PyObject *unused);
