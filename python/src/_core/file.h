/* SPDX-License-Identifier: Apache-2.0 */
/* Files: methods of the Client, behind load() and save() of _client.py. */
#pragma once

#include "core.h"

PyObject *file_load(PyObject *self, PyObject *args);
PyObject *file_save(PyObject *self, PyObject *args);
