/* SPDX-License-Identifier: Apache-2.0 */
/* The object behind Client.watch() and Client.events(). */
#pragma once

#include "core.h"

/*
 * _watch(name, prefix: bool, new: bool) -> a _core.Watch: next(timeout) -> (what, name, version,
 * skipped), or None if nothing happens in time; fileno(); close().
 */
PyObject *client_watch(PyObject *self, PyObject *args);
/* Closes the watches that ended during the client's tl_close(), which is over. */
void watches_close_ended(struct client *c);

int watch_init(PyObject *module);
