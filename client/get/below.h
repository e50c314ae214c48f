/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names below the prefixes that a client uses again and again, in tl_list() or in waits: the
 * daemon notes which of them change, so that nobody looks at all the others each time.
 */
#pragma once

#include "client/get/names.h"

struct below;

/*
 * A use of @prefix. NULL: look at all names, since it is not used often enough, or there is no
 * memory. Give it back with below_put(), which may be much later.
 */
struct below *below_get(tl_client *client, const char *prefix);
void below_put(tl_client *client, struct below *b); /* NULL is fine */

/* names_list() and names_wait(), by @b unless it is NULL. */
int below_list(struct below *b, struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context);
int below_wait(struct below *b, struct session *s, const char *prefix, struct wake_word *wake);

/* Keeps none of the client's: it is about to be closed, or its user needs what they cost. */
void below_forget(tl_client *client);
