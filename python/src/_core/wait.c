/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting in slices, between which Ctrl-C and close() are looked for. */
#include <errno.h>
#include <time.h>

#include "wait.h"

#define UNTOLD_SLICE_NS INT64_C(10000000)

int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_SEC + ts.tv_nsec;
}

int64_t wait_end(int64_t timeout_ns)
{
	return timeout_ns < 0 ? INT64_MAX : now_ns() + timeout_ns;
}

int64_t wait_left(int64_t end)
{
	int64_t left = end == INT64_MAX ? INT64_MAX : end - now_ns();

	return left > 0 ? left : 0;
}

int wait_closed(const char *what)
{
	PyErr_Format(PyExc_ValueError, "the client was closed during %s", what);
	return -1;
}

/* Returns whether waiting may change what a look returned. */
bool worth_waiting(int r)
{
	return r == -ENOENT || r == -EAGAIN || r == -ENOTCONN || r == -ECONNREFUSED ||
	       r == -ETIMEDOUT || r == -EINTR;
}

/*
 * Waits in slices of a second, because a signal that comes between PyErr_CheckSignals() and the
 * sleep does not end the sleep. Where nothing wakes us, the slices are some milliseconds.
 */
int client_wait(struct client *c, const struct wait *w, int64_t timeout_ns)
{
	int64_t end = wait_end(timeout_ns);
	uint32_t over = __atomic_load_n(&c->over, __ATOMIC_SEQ_CST);

	if (c->closing) /* since the first look */
		return wait_closed("a get");
	for (;;) {
		int64_t left = wait_left(end);
		int64_t slice = w->item.name ? NS_PER_SEC : UNTOLD_SLICE_NS;
		size_t which;
		int r;

		if (!left)
			return 1;
		Py_BEGIN_ALLOW_THREADS;
		r = tl_wait_many(c->client, &w->item, w->item.name ? 1 : 0, &c->over, over,
				 left < slice ? left : slice, &which);
		if (!r || (r == -ETIMEDOUT && !w->item.name))
			r = w->look(w->context);
		Py_END_ALLOW_THREADS;
		if (!r)
			return 0;
		if (r == -ECANCELED || c->closing)
			return wait_closed("a get");
		if (!worth_waiting(r) && (r != -ENODATA || !w->item.name)) {
			raise_error(r);
			return -1;
		}
		if (PyErr_CheckSignals())
			return -1;
	}
}

/*
 * Only a refusal at the end of a slice means that the attempt waited for space. An earlier one is
 * final, as for a size that never fits.
 */
int client_with_space(struct client *c, int (*attempt)(void *context, int64_t timeout_ns),
		      void *context, int64_t timeout_ns)
{
	int64_t end = wait_end(timeout_ns);

	for (;;) {
		int64_t began = now_ns(), left = wait_left(end);
		int64_t slice = left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS;
		int r;

		Py_BEGIN_ALLOW_THREADS;
		r = attempt(context, slice);
		Py_END_ALLOW_THREADS;
		if ((r != -ENOSPC && r != -EDQUOT) || slice == left || now_ns() - began < slice / 2)
			return r;
		if (c->closing) {
			wait_closed("a wait for space");
			return 1;
		}
		if (PyErr_CheckSignals())
			return 1;
	}
}
