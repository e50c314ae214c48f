/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting that Ctrl-C and close() end; in client.c. */
#pragma once

#include "core.h"

struct wait {
	tl_wait_item item; /* without a name: looks every few milliseconds */
	int (*look)(
		void *context); /* without the GIL. 0: it is there; else a negative errno of the library */
	void *context;
};

/*
 * After a look that found nothing. By an open client, between client_begin() and client_end(). 0; 1: it did not come in
 * time; -1 with an exception.
 */
int client_wait(struct client *c, const struct wait *w, int64_t timeout_ns);
bool worth_waiting(int r);
