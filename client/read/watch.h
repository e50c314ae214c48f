/* SPDX-License-Identifier: Apache-2.0 */
/* Watches: events of one name, or of all names with a prefix; and the silent watches of prefixes
 * that are listed repeatedly. */
#pragma once

#include <stdint.h>
#include <tensorlease/watch.h>

#include "client/connection/client.h"
#include "client/read/lookup.h"
#include "client/read/names.h"

/* The work of tl_watch_open() and its companions, with arguments that are checked. */
int watch_open(struct tl_client *client, const char *name, uint32_t flags, struct tl_watch **out);
int watch_next(struct tl_watch *w, const tl_wait_options *options, tl_watch_event *event);
int watch_fd(struct tl_watch *w, int *fd);
void watch_close(struct tl_watch *w);
/*
 * For the library itself: a watch that reports no events and only knows which names start with
 * @prefix. It belongs to its client, so it holds no reference, and is freed before the client.
 * NULL: no memory.
 */
struct tl_watch *watch_silent(struct tl_client *client, const char *prefix, size_t len);
void watch_drop(struct tl_watch *w);

/* Names and the indices of their entries. */
struct watch_names {
	size_t count;
	struct watch_name {
		uint32_t index;
		char *text; /* behind the list */
	} * list;	    /* free() it */
};

/* Lists the names that exist. Returns the outcomes that call_run() takes. */
int watch_names(struct tl_watch *w, struct session *s, struct watch_names *names);
/* Looks for any name. Returns 0 if there is one, LEASE_E_NONE (sleep on *@wake), or an outcome of
 * watch_names(). */
int watch_any(struct tl_watch *w, struct session *s, struct wake_word *wake);
/* Lets the watch forget its names, and the daemon note nothing, until the watch is used again. */
void watch_rest(struct tl_watch *w);

/* To be called before the client is closed: its watches report nothing any more. */
void watches_close(struct tl_client *client);

/*
 * The names below prefixes that a client uses again and again, in tl_list() or in waits. The daemon
 * notes which of them change, so that a client need not look at all of them each time.
 */

struct below;

/* Begins a use of @prefix. NULL: look at all names, since the prefix is not used often enough, or
 * memory is short. below_put() ends the use, perhaps much later. */
struct below *below_get(tl_client *client, const char *prefix);
void below_put(tl_client *client, struct below *b); /* NULL is fine */

/* names_list() and names_wait(), by means of @b unless it is NULL. */
int below_list(struct below *b, struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context);
int below_wait(struct below *b, struct session *s, const char *prefix, struct wake_word *wake);

/* Frees the client's prefixes that are not in use: the client is about to be closed, or needs the
 * watches that they take. */
void below_forget(tl_client *client);
