/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting that Ctrl-C and close() end. All of it by an open client, between client_begin() and client_end(). */
#pragma once

#include "core.h"

#define WAIT_SLICE_NS INT64_C(200000000) /* of what no signal and no close() ends */

int64_t now_ns(void);
/* When @timeout_ns is over, and how much of it is left: 0, it is over. */
int64_t wait_end(int64_t timeout_ns);
int64_t wait_left(int64_t end);
/* -1 with the exception for that: a client that was closed during @what. */
int wait_closed(const char *what);

struct wait {
	tl_wait_item item; /* without a name: looks every few milliseconds */
	int (*look)(
		void *context); /* without the GIL. 0: it is there; else a negative errno of the library */
	void *context;
};

/* After a look that found nothing. 0; 1: it did not come in time; -1 with an exception. */
int client_wait(struct client *c, const struct wait *w, int64_t timeout_ns);
bool worth_waiting(int r);

/*
 * What may have to wait for space: @attempt, without the GIL, waits for it as the library does for the time that it is
 * given, and is made again as long as there is none. 0 or the last one's negative errno; 1 with an exception.
 */
int client_with_space(struct client *c, int (*attempt)(void *context, int64_t timeout_ns),
		      void *context, int64_t timeout_ns);
