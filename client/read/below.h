/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names below prefixes that a client uses again and again, in tl_list() or in waits. The daemon
 * notes which of them change, so that a client need not look at all of them each time.
 */
#pragma once

#include "client/read/names.h"

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
