/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of the Client for files, behind load() and save() of _client.py. */
#pragma once

#include "core.h"

PyObject *file_load(PyObject *self, PyObject *args);
PyObject *file_save(PyObject *self, PyObject *args);
