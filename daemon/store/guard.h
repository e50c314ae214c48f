/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards the sizes of objects that clients may write, and keeps the remnants of broken ones
 * (below).
 *
 * With a writable descriptor, an object of POSIX shared memory can be grown by pages that are not
 * charged. The kernel reports each change of size (inotify), and the size is set right again, on
 * another thread (helper.h). Objects that cannot be watched, without inotify or because its watches
 * ran out, are looked at in turns, and guard_missed() reports them. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/account.h"
#include "daemon/store/shm.h"
#include "util/list.h"

struct guard {
	int fd; /* of inotify, readable when guard_next() has something to do; -1: there is none */
	void *by_watch;	       /* of all struct guarded; tsearch(3) */
	struct list all;       /* of struct guarded; all that are not in @due */
	struct list due;       /* of struct guarded; to be looked at */
	struct list unwatched; /* of struct guarded; guard_run_due() makes them due */
	uint64_t look_ns;      /* when that looks next; 0: not known yet */
	/* of struct guarded, by trim: */
	struct list wrong; /* their sizes are to be set right */
	struct list held;  /* that failed: a process holds their locks */
	unsigned missed;   /* objects that could not be watched, until guard_missed() */
	int error;	   /* why the last of them could not: an errno */
};

struct guarded;

/* Called when a process that had the object open for writing has closed and unmapped it, or is
 * about to have done so. May end the guard. */
typedef void guarded_closed(struct guarded *w);

/* An object that is guarded; embedded in its segment or remnant. */
struct guarded {
	int watch;	  /* 0: there is none */
	struct list link; /* in guard->all, ->due or ->unwatched, or in none */
	struct object object;
	uint64_t size;		/* its right size */
	uint64_t writer;	/* id of the client that was given the descriptor */
	guarded_closed *closed; /* NULL: not needed */
	uint32_t events;	/* reported, and not looked at yet; 0 in @due: any */
	bool changed;	  /* its size was changed once, and it may have holes: never reuse it */
	unsigned changes; /* how often that was found */
	struct list trim; /* in guard->wrong or ->held */
	struct guarded **user; /* the pointer of a job that sets its size right, cleared when the
				  guard ends; or NULL */
};

void guard_init(struct guard *g);
void guard_deinit(struct guard *g);

/* Begins to guard the object. False: it is not watched, for want of inotify or memory, but looked
 * at now and then. With @closed its owner has to look at it. */
bool guard_begin(struct guard *g, struct guarded *w, const struct object *o, uint64_t size,
		 uint64_t writer, guarded_closed *closed);
void guard_end(struct guard *g, struct guarded *w);
/* Has guard_next() look at the object, since its size may be wrong already. */
void guard_look(struct guard *g, struct guarded *w);
/* The number of objects that could not be watched since the last call, and the reason (an errno),
 * for the caller to report. Without inotify it is 0. */
unsigned guard_missed(struct guard *g, int *error);

/* Makes some unwatched objects due, if it is time to. Returns when to call it again; 0: there are
 * none. */
uint64_t guard_run_due(struct guard *g, uint64_t now);
/*
 * Looks at one object that has changed. False: there is none. If its size is wrong, it is to be set
 * right, and *@wrong is the object, each time that it was changed again; else NULL. Clients can
 * make changes faster than we look at them, so the caller must also do other work.
 */
bool guard_next(struct guard *g, struct guarded **wrong);
/* Notes that its size is to be set right. False: that is noted already. */
bool guard_trim(struct guard *g, struct guarded *w);
/* Puts the next object with a wrong size into *@user, which becomes NULL if its guard ends. False:
 * there is none. */
bool guard_take_wrong(struct guard *g, struct guarded **user);
/* To be called when its size was set right (@done), or could not be. */
void guard_trimmed(struct guard *g, struct guarded *w, bool done);
/* Tries again the objects that could not be set right. */
void guard_again(struct guard *g);

/*
 * Remnants: discarded objects that a process still has open for writing, so that they could be
 * grown again, or that could not be truncated yet. They are kept empty under their names until no
 * process has them open any more, and count as a segment of their user until then. Loop thread
 * only.
 */

struct remnants {
	struct guard *guard; /* outlives us */
	struct list all;     /* of struct remnant, by link; moves to the end when looked at */
	unsigned count;
	unsigned left;	   /* to be looked at in this round */
	uint64_t pause_ns; /* after this round */
	uint64_t look_ns;  /* when to look at the next; 0: there are none */
};

void remnants_init(struct remnants *remnants, struct guard *guard);
void remnants_deinit(struct remnants *remnants);

/*
 * Makes a remnant of @o, which the client @writer filled. Takes over *@charge, that of its segment.
 * A remnant that cannot be watched counts like any other, and is emptied whenever it is looked at.
 * Without memory the object is destroyed instead, and the charge left alone.
 */
void remnant_new(struct remnants *remnants, const struct object *o, uint64_t writer,
		 struct charge *charge);
/* Looks at a few remnants, of any user. */
void remnants_sweep(struct remnants *remnants);
/* Calls remnants_sweep() if it is time to. Returns when to call this again; 0: there are no
 * remnants. */
uint64_t remnants_run_due(struct remnants *remnants, uint64_t now);
