/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the names here mean the same as another host's set, all of them in one step. */
#pragma once

#include "mirror/transfer.h"

/* A member of the set, whose texts belong to the message; or a name here that is to be deleted. */
struct set_name {
	struct note note;
	struct replica *replica; /* the caller's */
	const char *local;
	bool known; /* what the name means is known; otherwise it is looked up */
	bool here;  /* the name means the member already */
};

struct set {
	struct message message;
	struct set_name *names;
	size_t count, all; /* members; names in all, with those to delete at the end */
};

/* Reads the message about a set. If it is not whole, fetches the whole one, which replaces *@t.
 * Returns 0 or a negative errno. Call set_deinit() in either case. */
int set_read(const struct job *job, struct target **t, struct set *set);
/* Publishes the set here, when the caller has filled in the names. Returns 0 or a negative errno:
 * -ENODATA if the origin has something newer. Then *@t is about that, or NULL. */
int set_transfer(const struct job *job, struct target **t, struct set *set);
void set_deinit(struct set *set);
