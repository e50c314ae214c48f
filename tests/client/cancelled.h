/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on a thread with a pending pthread_cancel(). It would end at the first cancellation point,
 * also in must(), which prints: so it keeps the line that it has come to.
 */
#pragma once

#include "tests/client/common.h"

struct caller {
	const struct test_daemon *d;
	tl_client *client;
	void (*calls)(struct caller *c);
	int line; /* of the last call that returned as it should; 0: all did */
};

#define step(call, result)                                                                         \
	do {                                                                                       \
		c->line = __LINE__;                                                                \
		if ((call) != (result))                                                            \
			return;                                                                    \
	} while (0)

static inline void *call_though_cancelled(void *arg)
{
	struct caller *c = arg;

	pthread_cancel(pthread_self());
	c->calls(c);
	pthread_testcancel();
	return NULL;
}

/* Makes the calls on a thread that is to end after them. */
static inline void must_not_end_it(struct caller *c, void (*calls)(struct caller *c))
{
	pthread_t thread;
	void *result;

	c->calls = calls;
	must_be(pthread_create(&thread, NULL, call_though_cancelled, c), 0);
	must_be(pthread_join(thread, &result), 0);
	must_be(c->line, 0);
	must(result == PTHREAD_CANCELED);
}
