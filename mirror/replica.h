/* SPDX-License-Identifier: Apache-2.0 */
/* A name of another host: what it means here, what was announced, and what remains to be done. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mirror/transfer.h"

/* LIGHT replicas need no transfer of bytes, and have a worker of their own. */
enum weight { LIGHT, HEAVY, WEIGHTS };

/* A replica without a name is a whole set, whose target is the message about it. */
struct replica {
	char *name; /* at the origin */
	char *local;
	struct origin *origin;
	struct target *target; /* NULL: nothing to do */
	struct replica *next;  /* in a queue, or in a list to be freed */
	bool queued, busy;
	bool known;			/* what it means here is known: */
	uint64_t version, committed_ns; /* at the origin; 0: it means nothing */
	uint64_t place; /* the origin's place then; versions of one place are ordered */
	bool told_gone; /* what was announced last: */
	uint64_t told_version, told_committed_ns;
	int64_t told_ns;       /* when */
	bool seen;	       /* in the present check of the names here */
	struct ticket *ticket; /* for giving it to other hosts; NULL: it is not given */
	/* When the origin published the first announced version that is not here, and the first
	 * one after the version in transfer; 0: none. The newest announced version. */
	uint64_t late_ns, later_ns, late_version;
};

/* The replicas of an import: a tree by name, and queues of work. */
struct replicas {
	void *tree;
	struct queue {
		struct replica *first, **end;
	} queues[WEIGHTS];
};

void replicas_init(struct replicas *all);
void replicas_deinit(struct replicas *all);
struct replica *replica_find(const struct replicas *all, const char *name);
/* Adds a replica, whose local name is @prefix and @name. Returns NULL without memory. */
struct replica *replica_add(struct replicas *all, struct origin *origin, const char *name,
			    const char *prefix);
/* Removes @first and all that follow by `next`. NULL: none. */
void replicas_remove(struct replicas *all, struct replica *first);

/* Queues the replica, unless it is queued already or busy. */
void replica_enqueue(struct replicas *all, struct replica *replica);
/* Takes the next replica of a queue, or returns NULL. */
struct replica *replica_dequeue(struct replicas *all, enum weight weight);

/* Forgets the last announcement. */
void replica_untell(struct replica *replica);
void replica_tell(struct replica *replica, const struct note *note);
/* Notes that a version was announced that is not here. */
void replica_late(struct replica *replica, uint64_t version, uint64_t committed_ns);
/* Notes that the target was reached; another one may have come meanwhile. */
void replica_arrived(struct replica *replica);
/* True if the note is older than the last announcement, as one in a page of a list may be. */
bool replica_is_old(const struct replica *replica, const struct note *note);
/* True if the name means that here, or will when pending work is done. */
bool replica_is_done(const struct replica *replica, const struct note *note);
/* True if the name means that here, or something newer of the same place: a version that the origin
 * sends in place of an old one comes before its own announcement. */
bool replica_is_past(const struct replica *replica, const struct note *note, uint64_t place);
