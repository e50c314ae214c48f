/* SPDX-License-Identifier: Apache-2.0 */
/* What tl_last_error() and tl_last_cause() tell: the reason of the last failure in this thread. */
#pragma once

#include <stdint.h>

/*
 * Keeps the text and returns @err, a negative errno, so that a failure is one line:
 *	return tl_fail(-EINVAL, "a name of %zu bytes; the limit is %d", n, TL_NAME_MAX);
 * "%m" in @format stands for the text of @err. tl_failure_text() may be among the arguments. Sets
 * errno to -@err.
 */
#define tl_fail(err, ...)                                                                          \
	({                                                                                         \
		int err_ = (err);                                                                  \
		tl_fail_say(err_, __VA_ARGS__);                                                    \
		err_; /* here, so that compilers and analyzers see that it is not 0 */             \
	})
void tl_fail_say(int err, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));

/* To be called when a thread first uses the library: its failures for want of memory will have
 * their texts all the same. */
void tl_failure_prepare(void);

/* tl_fail() for an mmap() that has failed with errno; @format says what it was for. Returns -ENOMEM
 * for EAGAIN, which says that the process may lock no more memory: -EAGAIN means another thing. */
int tl_fail_mmap(const char *format, ...) __attribute__((cold, format(printf, 1, 2)));

/* Keeps the @cause of a failure, a TL_CAUSE_*, and its @id. To be called after tl_fail(), which
 * forgets the one before. */
void tl_fail_because(uint32_t cause, uint32_t id);

/* Between these two calls, which nest, the reason of this thread stays as it is. For deleters,
 * which are called after failures that still have to be reported. */
void tl_failures_hide(void);
void tl_failures_show(void);

/* Returns the text of tl_last_error(). */
const char *tl_failure_text(void);
/* Returns the cause, and stores its id in *@id. */
uint32_t tl_failure_cause(uint32_t *id);
