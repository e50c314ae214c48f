/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits that Ctrl-C and close() end. All of these functions need an open client, between
 * client_begin() and client_end().
 */
#pragma once

#include "core.h"

#define WAIT_SLICE_NS                                                                              \
	INT64_C(200000000) /* a slice, for waits that no signal and no close() ends                \
			    */

int64_t now_ns(void);
/* wait_end() returns the time when @timeout_ns will be over, and wait_left() how much of it is
 * left; 0: it is over. */
int64_t wait_end(int64_t timeout_ns);
int64_t wait_left(int64_t end);
/* Returns -1 with the exception for a client that was closed during @what. */
int wait_closed(const char *what);

struct wait {
	tl_wait_item item;
	int (*look)(void *context); /* without the GIL; 0: it is there, else a negative errno of the
				       library */
	void *context;
	const char *why; /* the text of a look that failed; NULL, or empty: it is the library's */
};

/* Waits after a look that found nothing. Returns 0, 1 if the tensor did not come in time, or -1
 * with an exception. */
int client_wait(struct client *c, const struct wait *w, int64_t timeout_ns);
bool worth_waiting(int r);
/* Raises a TimeoutError for a wait for @name, or for names below @prefix, and returns -1.
 * The text has the present version, and when the daemon was started if that was during the wait,
 * which began at @began_ns of now_ns(). */
int wait_late(struct client *c, const char *name, uint64_t newer_than, int64_t timeout_ns,
	      int64_t began_ns);
int wait_late_prefix(struct client *c, const char *prefix, int64_t timeout_ns, int64_t began_ns);

/*
 * Waits for space as long as it is told. *@had_space, false before, becomes true if it knows that
 * it had space and failed later, so that another attempt would fail too.
 */
typedef int attempt_fn(void *context, int64_t timeout_ns, bool *had_space);

/* Calls @attempt without the GIL, again and again as long as there is no space. Returns 0, the last
 * negative errno, or 1 with an exception. */
int client_with_space(struct client *c, attempt_fn *attempt, void *context, int64_t timeout_ns);

/* Changes a word of the client, which ends the waits that began at its former value. */
void wait_wake(uint32_t *word);

/* Methods of the Client, for the thread behind aget(). */
/*
 * _wait_many(items: tuple, word: int, timeout) -> index, or None: the word changed, a signal came,
 * or the time is up
 */
PyObject *client_wait_many(PyObject *self, PyObject *args);
/* _late(name, newer_than, timeout, began): raises as wait_late() does. @began is of
 * time.monotonic(). */
PyObject *client_late(PyObject *self, PyObject *args);
PyObject *client_wake(PyObject *self, PyObject *unused);
PyObject *client_wake_word(PyObject *self, PyObject *unused);
