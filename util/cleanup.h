/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound cleanup and the hand-over of what a scope owned. */
#pragma once

#include <stdlib.h>

#include "util/fd.h"

/* Runs fn(&variable) when the variable leaves its scope. */
#define cleanup_(fn) __attribute__((cleanup(fn)))

/* The pointer's value; the variable is left NULL. */
#define take_ptr(p)                                                                                \
	({                                                                                         \
		__typeof__(p) *take_ptr_ = &(p);                                                   \
		__typeof__(p) taken_ = *take_ptr_;                                                 \
		*take_ptr_ = NULL;                                                                 \
		taken_;                                                                            \
	})

/* Defines fn##p(), the cleanup_() form of a destructor which takes a pointer and accepts NULL. */
#define define_cleanup_ptr(type, fn)                                                               \
	static inline void fn##p(type **p)                                                         \
	{                                                                                          \
		fn(*p);                                                                            \
	}

/* For cleanup_(freep) on a pointer of any type. */
static inline void freep(void *p)
{
	free(*(void **)p);
}

/* For cleanup_(fd_closep) on an int. */
static inline void fd_closep(int *fd)
{
	fd_close(*fd);
}

/* The descriptor's number; *@fd is left -1. */
static inline int take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}
