/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards the sizes of objects that clients have descriptors for writing of: with such a descriptor
 * an object of POSIX shared memory can be grown, and pages added that nobody counts. The kernel
 * tells of each change of size (inotify), and we set it right again. Where inotify cannot be had
 * nothing is guarded. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/object.h"
#include "util/list.h"

struct guard {
	int fd; /* of inotify, readable when guard_next() has something to do; -1: there is none */
	void *by_watch;	 /* of struct guarded; tsearch(3) */
	struct list all; /* of struct guarded; the same */
	struct list due; /* those of all that are to be looked at, since events were lost */
	struct list remnants;
};

/* An object that is guarded; embedded in its segment. */
struct guarded {
	int watch;	  /* 0: it is not guarded */
	struct list link; /* in guard->all or ->due, if it is */
	struct object object;
	uint64_t size;	 /* that it must have */
	uint64_t writer; /* id of the client that was given the descriptor */
	bool changed;	 /* it had another size once, and may have holes: not to be used again */
	struct list remnant_link;
};

void guard_init(struct guard *g);
void guard_deinit(struct guard *g);

/* False: it could not be. */
bool guard_begin(struct guard *g, struct guarded *w, const struct object *o, uint64_t size,
		 uint64_t writer);
void guard_end(struct guard *g, struct guarded *w);

/*
 * Looks at one thing that has changed. False: there is none. *@writer is 0, or, if an object had
 * another size than it must have, and has the right one now, who may have done it. Clients can make
 * changes faster than they are looked at: who calls this again and again must do other work, too.
 */
bool guard_next(struct guard *g, uint64_t *writer);

/*
 * An object that is over, and was truncated, but is open for writing somewhere, so that it may be
 * grown again; or that could not be truncated yet. It is kept empty under its name until nobody has
 * it open any more.
 */
void guard_remnant(struct guard *g, const struct object *o, uint64_t writer);
/* Looks whether some remnants are closed everywhere: those of @writer, and a few of all. */
void guard_sweep(struct guard *g, uint64_t writer);
