/* SPDX-License-Identifier: Apache-2.0 */
/* Items that were taken from a stream, as objects. */
#pragma once

#include <tensorlease/stream.h>

#include "core.h"

/* A _core.Item without an item, or NULL with an exception. */
PyObject *item_new(void);
/* Gives it the item; it is its own from now on. NULL: it has none. */
void item_set(PyObject *self, tl_item *item);
int item_init(void);
