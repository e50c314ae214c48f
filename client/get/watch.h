/* SPDX-License-Identifier: Apache-2.0 */
/* Watches: what becomes of one name, or of all that start alike. */
#pragma once

#include <stdint.h>

#include <tensorlease/watch.h>

#include "client/get/lookup.h"
#include "client/session/client.h"

/* Those of tl_watch_open() and so on, with arguments that are checked. */
int watch_open(struct tl_client *client, const char *name, size_t len, uint32_t flags,
	       struct tl_watch **out);
int watch_next(struct tl_watch *w, const tl_wait_options *options, tl_watch_event *event);
int watch_fd(struct tl_watch *w, int *fd);
void watch_close(struct tl_watch *w);
/*
 * For the library itself: a watch that tells nothing and only knows which names there are that
 * start with @prefix. It belongs to its client, so it holds no reference, and is freed before
 * that. NULL: no memory.
 */
struct tl_watch *watch_silent(struct tl_client *client, const char *prefix, size_t len);
void watch_drop(struct tl_watch *w);

/* Names, and the entries that they have. */
struct watch_names {
	size_t count;
	struct watch_name {
		uint32_t index;
		char *text; /* behind the list */
	} * list;	    /* free() it */
};

/* Which names there are: outcomes as call_run() takes them. */
int watch_names(struct tl_watch *w, struct session *s, struct watch_names *names);
/* Is there one? 0; LEASE_E_NONE: sleep on *@wake; or as watch_names(). */
int watch_any(struct tl_watch *w, struct session *s, struct wake_word *wake);
/* It knows no names any more, and has nothing noted, until it is asked again. */
void watch_rest(struct tl_watch *w);

/* The client is about to be closed: its watches tell nothing any more. */
void watches_close(struct tl_client *client);
