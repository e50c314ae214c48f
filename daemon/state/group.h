/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: up to WIRE_GROUP_MAX members that are published in one step for all readers, though it
 * takes the daemon many. Meanwhile the client that asked is busy with it (client.group), and its
 * next messages wait. Other clients' messages do not wait, whatever names they are about.
 */
#pragma once

#include "daemon/state/client.h"

/*
 * Begins to publish the @count members of @ref. If that fails, as tensor_commit() does or with
 * -ENOMEM, none of them is published in the end. STATE_E_STALE: @c has no such draft, and nothing
 * begins.
 */
int group_begin(struct state *st, struct client *c, uint64_t ref, uint32_t count);
/*
 * Goes on by about @looks members. True: *@error (with *@why) is the outcome, which may be true
 * again while the rest is done: the group's memory is given up only after its client could be told.
 * A daemon that begins in between finds by it that the group was published. Also goes on with a
 * group that tensor_abort() gives up.
 */
bool group_step(struct state *st, struct client *c, unsigned looks, int *error, const char **why);

/* True: it is only to be answered again. */
bool group_was_published(const struct state *st, const struct client *c, uint64_t ref);

static inline bool group_goes_on(const struct client *c)
{
	return c->group.phase != GROUP_NONE;
}

/* The connection has ended: takes the group back unless it is published already. True: it is
 * over. */
bool group_leave(struct state *st, struct client *c, unsigned *looks);
