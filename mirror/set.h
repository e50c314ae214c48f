/* SPDX-License-Identifier: Apache-2.0 */
/* Makes names here mean what the set of another host does, all of them in one step. */
#pragma once

#include "mirror/transfer.h"

/* A member of the set, whose texts are those of the message; or a name here that is to go. */
struct set_name {
	struct note note;
	struct replica *replica; /* the caller's */
	const char *local;
	bool known; /* whether it is known what the name means; else it is looked up */
	bool here;  /* it means that already */
};

struct set {
	struct message message;
	struct set_name *names;
	size_t count, all; /* members; and with the names that are to go, which follow them */
};

/* Reads the message about a set, after it was brought here if that is not whole. *@t takes its
 * place then. Returns 0 or a negative errno. set_deinit() in either case. */
int set_read(const struct job *job, struct target **t, struct set *set);
/* Does it, when the caller has filled in the names. If the origin has something newer, returns
 * -ENODATA;
 * *@t is about it then, or is NULL. Returns 0 or another negative errno. */
int set_transfer(const struct job *job, struct target **t, struct set *set);
void set_deinit(struct set *set);
