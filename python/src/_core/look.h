/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of the Client that describe tensors, clients and devices, as tuples. */
#pragma once

#include "core.h"

PyObject *look_stat(PyObject *self, PyObject *name);
PyObject *look_list(PyObject *self, PyObject *prefix);
PyObject *look_status(PyObject *self, PyObject *unused);
PyObject *look_devices(PyObject *self, PyObject *unused);
PyObject *look_clients(PyObject *self, PyObject *unused);
PyObject *look_holdings(PyObject *self, PyObject *id);
int look_contains(PyObject *self, PyObject *name);
