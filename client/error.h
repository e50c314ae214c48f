/* SPDX-License-Identifier: Apache-2.0 */
/* How functions of the library fail: named outcomes, and error texts. */
#pragma once

#include <stdint.h>

/* What tl_last_error() and tl_last_cause() tell: the reason of the last failure in this thread. */

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

/*
 * Named outcomes of the library's own functions. Besides them a function returns 0, or a negative
 * errno whose text is there. call_run() acts on those of the first three groups.
 */

enum {
	/* ---- The connection ---- */

	/* The connection has ended, and the daemon has not seen the message: try a new one. */
	SESSION_E_UNSENT = 1,
	SESSION_E_ENDED, /* the connection ended while we waited for the answer */
	/* Another daemon has taken the connection over, and does not know the request: send it
	 * again. session_call() does so itself. */
	SESSION_E_ADOPTED,

	/* ---- Why there is no lease, and why to look again ---- */

	LEASE_E_STALE,	  /* the name does not mean the tensor any more */
	LEASE_E_UNSERVED, /* the daemon does not read our ledger: another session is needed */
	LEASE_E_FORKING,  /* fork() is under way: process_wait_fork() */

	/* ---- Drafts of a daemon that has ended ---- */

	CALL_E_STALE, /* the draft is stale and was not published: make it anew, once; the text is
			 set */

	/* ---- Why there is no lease, although all is well ---- */

	LEASE_E_NONE,	  /* no tensor has that name */
	LEASE_E_OLD,	  /* it is not newer than requested */
	LEASE_E_TOO_MANY, /* the counter is at its maximum */
	LEASE_E_LOST,	  /* its memory went with the process that published it */
	LEASE_E_RING,	  /* the page of the name's ring is not mapped: ring_ask_page() */
	LEASE_E_UNMAPPED, /* taken and given back: its segment is not mapped yet */
	LEASE_E_SLOW,	  /* a mapping is not enough: lease_get() */
	LOOKUP_E_AGAIN,	  /* the name's meaning has just changed */

	/* ---- Of publishing ---- */

	PUBLISH_E_COPY, /* not in our memory, or not publishable as it is: copy */
	RING_E_OVER,	/* the ring has ended: COMMIT, and keep the hold until that is answered */
	RING_E_NONE,	/* nothing was sent: commit without a ring */
};
