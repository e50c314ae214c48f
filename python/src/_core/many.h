/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of the Client for groups, behind put_many() and get_many() of _client.py. */
#pragma once

#include "core.h"

PyObject *many_put(PyObject *self, PyObject *args);
/* _publish_many(names, arrays, metadata, timeout, (ttl, owner_bound, evictable), stream, sealed) ->
 * number of copied arrays; as _put_many(), with the same metadata for each */
PyObject *many_publish(PyObject *self, PyObject *args);
PyObject *many_get(PyObject *self, PyObject *args);
PyObject *many_get_all(PyObject *self, PyObject *args);
