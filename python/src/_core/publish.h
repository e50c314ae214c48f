/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of the Client that publish one tensor. */
#pragma once

#include "core.h"

extern const char put_doc[];

PyObject *client_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
/* _publish(name, tensor, ...) -> (version, copied) */
PyObject *client_publish(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
/*
 * _create(name, shape, (code, bits, lanes), flags, metadata, timeout, GPU or -1,
 *         (ttl, owner_bound, evictable), ring, own_pages) -> Draft
 */
PyObject *client_create(PyObject *self, PyObject *args);
