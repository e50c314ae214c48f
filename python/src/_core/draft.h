/* SPDX-License-Identifier: Apache-2.0 */
/* What client.c does with drafts. */
#pragma once

#include "core.h"

/* Commits under @name; on success *version (if asked for) and *copied (may be NULL). 0, or -1 with an exception. */
int draft_publish(struct draft *d, PyObject *name, const tl_put_options *options, uint64_t *version,
		  bool *copied);

/* It was published under @name, as @version if that is not 0: it has no memory any more. */
void draft_committed(struct draft *d, PyObject *name, uint64_t version);

/* On a GPU: a consumer will work on it there. */
void draft_used_on(struct draft *d, intptr_t stream);
/* On a GPU: the user says on which stream it is written; TL_STREAM_DEFAULT: he does not. */
void draft_say_stream(struct draft *d, intptr_t stream);

/* The open draft whose bytes begin there, borrowed, or NULL. */
struct draft *draft_with_bytes_at(struct client *c, const void *data);
