/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What takes the GIL's place where there is none. All of this extension is written as for the GIL:
 * between two points that give it up nobody else is here. In a free-threaded interpreter each
 * function that Python calls begins with WITH_LOCK, a critical section of one object. The
 * interpreter gives it up where it would give up the GIL: in Py_BEGIN_ALLOW_THREADS, and where it
 * runs other code that waits. An object that is going away waits for it too, before it frees what
 * others might see.
 */
#pragma once

#include "core.h"

#ifdef Py_GIL_DISABLED

extern PyObject *extension_lock; /* the module */

#define WITH_LOCK                                                                                  \
	__attribute__((cleanup(PyCriticalSection_End))) PyCriticalSection section;                 \
	PyCriticalSection_Begin(&section, extension_lock)

#else

#define WITH_LOCK _Static_assert(1, "the GIL is the lock")

#endif
