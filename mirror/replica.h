/* SPDX-License-Identifier: Apache-2.0 */
/* A name of another host: what it means here, what was told of it, and what is to be done. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mirror/transfer.h"

/* Light ones take no transfer of their own, and have a worker that does nothing else. */
enum weight { LIGHT, HEAVY, WEIGHTS };

/* One without a name is a whole set, whose target is the message about it. */
struct replica {
	char *name; /* as the origin has it */
	char *local;
	struct origin *origin;
	struct target *target; /* NULL: nothing is to be done */
	struct replica *next;  /* in a queue, or of those that are to be freed */
	bool queued, busy;
	bool known;			/* what it means here: */
	uint64_t version, committed_ns; /* of the origin; 0: it means nothing */
	uint64_t place;			/* of the origin then: the versions of one are ordered */
	bool told_gone;			/* what was announced last: */
	uint64_t told_version, told_committed_ns;
	int64_t told_ns;       /* when */
	bool seen;	       /* by a look at what is here */
	struct ticket *ticket; /* by which others are given it; NULL: they are not */
	/* When the origin has published the first version that was told and is not here, and the
	 * first after the one that travels; 0: there is none. And the newest that was told. */
	uint64_t late_ns, later_ns, late_version;
};

/* Those of an import: a tree by name, and queues of what is to be done. */
struct replicas {
	void *tree;
	struct queue {
		struct replica *first, **end;
	} queues[WEIGHTS];
};

void replicas_init(struct replicas *all);
void replicas_deinit(struct replicas *all);
struct replica *replica_find(const struct replicas *all, const char *name);
/* Here its name has @prefix before it. Returns NULL without memory. */
struct replica *replica_add(struct replicas *all, struct origin *origin, const char *name,
			    const char *prefix);
/* Removes all that follow @first in their `next`. NULL: none. */
void replicas_remove(struct replicas *all, struct replica *first);

/* Its target is to be done, as soon as it is not busy. */
void replica_enqueue(struct replicas *all, struct replica *replica);
/* Returns NULL if there is none. */
struct replica *replica_dequeue(struct replicas *all, enum weight weight);

/* As if nothing had been announced. */
void replica_untell(struct replica *replica);
void replica_tell(struct replica *replica, const struct note *note);
/* A version was told that is not here. */
void replica_late(struct replica *replica, uint64_t version, uint64_t committed_ns);
/* It means what it was to mean, but for a target that has come meanwhile. */
void replica_arrived(struct replica *replica);
/* A page of a list may be older than an announcement that came before it. */
bool replica_is_old(const struct replica *replica, const struct note *note);
/* Whether the name means that here, or will without more. */
bool replica_is_done(const struct replica *replica, const struct note *note);
/* Whether the name means that here, or something newer of the same place: what an origin tells in
 * place of an old version comes before its announcement. */
bool replica_is_past(const struct replica *replica, const struct note *note, uint64_t place);
