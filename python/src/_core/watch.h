/* SPDX-License-Identifier: Apache-2.0 */
/* The object behind Client.watch() and Client.events(). */
#pragma once

#include "core.h"

/*
 * _watch(name, prefix: bool, new: bool) -> a _core.Watch: next(timeout) -> (what, name, version,
 * skipped), or None if nothing happens in time; fileno(); close().
 */
PyObject *client_watch(PyObject *self, PyObject *args);

int watch_init(PyObject *module);
