/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of drafts that client.c needs. */
#pragma once

#include "core.h"

/*
 * Commits the draft under @name. Sets *version if asked for, and *copied (may be NULL). Returns 0,
 * or -1 with an exception.
 */
int draft_publish(struct draft *d, PyObject *name, const tl_put_options *options, uint64_t *version,
		  bool *copied);

/*
 * Notes that it was published under @name, as @version if that is not 0. It has no memory any more.
 */
void draft_committed(struct draft *d, PyObject *name, uint64_t version);

/* On a GPU: notes that a consumer will work on that stream. */
void draft_used_on(struct draft *d, intptr_t stream);
/* On a GPU: notes the stream that the user names; TL_STREAM_DEFAULT if none. */
void draft_say_stream(struct draft *d, intptr_t stream);

/* Returns the open draft whose bytes begin at that address, borrowed, or NULL. */
struct draft *draft_with_bytes_at(struct client *c, const void *data);
