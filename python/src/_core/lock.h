/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock that replaces the GIL where there is none. This whole extension is written for the GIL:
 * between two points that give it up no other thread runs here. In a free-threaded interpreter each
 * function that Python calls begins with WITH_LOCK, a critical section of one object. The
 * interpreter gives that up where it would give up the GIL: in Py_BEGIN_ALLOW_THREADS, and where it
 * runs other code that waits. An object that is going away also waits for it, before it frees
 * memory that other threads might see.
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
