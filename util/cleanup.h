/* SPDX-License-Identifier: Apache-2.0 */
/* Cleanup at the end of a scope, and ways to keep a value from it. */
#pragma once

#include <stdlib.h>

#include "util/fd.h"

/* Runs fn(&variable) when the variable leaves its scope. Clang 14 would call a variable unused that
 * has no other use. */
#define cleanup_(fn) __attribute__((cleanup(fn), unused))

/* Returns the pointer and leaves the variable NULL, so that its cleanup does nothing. */
#define take_ptr(p)                                                                                \
	({                                                                                         \
		__typeof__(p) *take_ptr_ = &(p);                                                   \
		__typeof__(p) taken_ = *take_ptr_;                                                 \
		*take_ptr_ = NULL;                                                                 \
		taken_;                                                                            \
	})

/* Defines fn##p(), the cleanup_() form of a destructor that takes a pointer and accepts NULL. */
#define define_cleanup_ptr(type, fn)                                                               \
	static inline void fn##p(type **p)                                                         \
	{                                                                                          \
		fn(*p);                                                                            \
	}

/* Used as cleanup_(freep), on a pointer of any type. */
static inline void freep(void *p)
{
	free(*(void **)p);
}

/* Used as cleanup_(fd_closep), on an int. */
static inline void fd_closep(int *fd)
{
	fd_close(*fd);
}

/* Returns the descriptor and leaves *@fd -1. */
static inline int take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}
