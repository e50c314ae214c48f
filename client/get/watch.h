/* SPDX-License-Identifier: Apache-2.0 */
/* Watches: what becomes of one name, or of all that start alike. */
#pragma once

#include <stdint.h>

#include <tensorlease/watch.h>

#include "client/session/client.h"

/* Those of tl_watch_open() and so on, with arguments that are checked. */
int watch_open(struct tl_client *client, const char *name, size_t len, uint32_t flags,
	       struct tl_watch **out);
int watch_next(struct tl_watch *w, const tl_wait_options *options, tl_watch_event *event);
int watch_fd(struct tl_watch *w, int *fd);
void watch_close(struct tl_watch *w);
/* The client is about to be closed: its watches tell nothing any more. */
void watches_close(struct tl_client *client);
