/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards the sizes of objects that clients may write. With a writable descriptor, an object of
 * POSIX shared memory can be grown by pages that nobody counts. The kernel reports each change of
 * size (inotify), and we have the size set right again, on another thread (helper.h). What cannot
 * be watched, without inotify or because its watches ran out, is looked at in turns, and
 * guard_missed() tells. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/shm.h"
#include "util/list.h"

struct guard {
	int fd; /* of inotify, readable when guard_next() has something to do; -1: there is none */
	void *by_watch;	       /* of all struct guarded; tsearch(3) */
	struct list all;       /* of struct guarded; all that are not in @due */
	struct list due;       /* of struct guarded; to be looked at */
	struct list unwatched; /* of struct guarded; those that guard_settle() makes due */
	uint64_t look_ns;      /* when it does so next; 0: not known yet */
	/* of struct guarded, by trim: */
	struct list wrong; /* their sizes are to be set right */
	struct list held;  /* that could not be done: somebody holds them */
	unsigned missed;   /* objects that could not be watched, until guard_missed() */
	int error;	   /* why the last of them could not: an errno */
};

struct guarded;

/* Somebody who had the object open for writing has closed and unmapped it, or is about to be done
 * with that. May end the guard. */
typedef void guarded_closed(struct guarded *w);

/* An object that is guarded; embedded in its segment or remnant. */
struct guarded {
	int watch;	  /* 0: there is none */
	struct list link; /* in guard->all, ->due or ->unwatched, or in none */
	struct object object;
	uint64_t size;		/* the one that it must have */
	uint64_t writer;	/* id of the client that was given the descriptor */
	guarded_closed *closed; /* NULL: nobody wants to know */
	uint32_t events;	/* that were reported and not looked at; 0 in @due: any */
	bool changed;		/* it had another size once, and may have holes: never reuse it */
	unsigned changes;	/* how often that was found */
	struct list trim;	/* in guard->wrong or ->held */
	struct guarded **user;	/* who sets its size right, and must not think that we are here
				   still when we are not; NULL: nobody does */
};

void guard_init(struct guard *g);
void guard_deinit(struct guard *g);

/* False: the object is not watched, for want of inotify or memory, but looked at now and then. With
 * @closed its owner has to do that. */
bool guard_begin(struct guard *g, struct guarded *w, const struct object *o, uint64_t size,
		 uint64_t writer, guarded_closed *closed);
void guard_end(struct guard *g, struct guarded *w);
/* How many objects could not be watched since the last call, and why (an errno)? Somebody must say
 * so. Without inotify it is none. */
unsigned guard_missed(struct guard *g, int *error);

/* Makes some that are not watched due, if it is time to. Returns when to call it again; 0: there
 * are none. */
uint64_t guard_settle(struct guard *g, uint64_t now);
/*
 * Looks at one object that has changed. False: there is none. If it has another size than it must
 * have, that is to be set right, and *@wrong is the object, each time that it was changed anew;
 * else NULL. Clients can make changes faster than we look at them, so the caller must also do other
 * work.
 */
bool guard_next(struct guard *g, struct guarded **wrong);
/* Its size is wrong: it is to be set right. False: that is known already. */
bool guard_trim(struct guard *g, struct guarded *w);
/* Puts the next of those into *@user, which becomes NULL if its guard ends. False: there is none.
 */
bool guard_take_wrong(struct guard *g, struct guarded **user);
/* Its size was set right, or could not be. */
void guard_trimmed(struct guard *g, struct guarded *w, bool done);
/* Tries those again that could not be. */
void guard_again(struct guard *g);
