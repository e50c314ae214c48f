/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of the Client that are one request: names are claimed and deleted, clients disconnected.
 */
#pragma once

#include "core.h"

extern const char kick_doc[], kick_user_doc[];

/*
 * _claim(name, timeout) -> True: it is ours. False: the name is published. None: another has it
 * still when the time is over.
 */
PyObject *client_claim(PyObject *self, PyObject *args);
/* _unclaim(name); a client that is closed has no claims. */
PyObject *client_unclaim(PyObject *self, PyObject *name);
PyObject *client_delete(PyObject *self, PyObject *args);
PyObject *client_kick(PyObject *self, PyObject *id);
PyObject *client_kick_user(PyObject *self, PyObject *uid);
