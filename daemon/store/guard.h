/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards the sizes of objects that clients may write. With a writable descriptor, an object of
 * POSIX shared memory can be grown by pages that nobody counts. The kernel reports each change of
 * size (inotify), and we set the size right again. Without inotify nothing is guarded. Loop thread
 * only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/object.h"
#include "util/list.h"

struct guard {
	int fd; /* of inotify, readable when guard_next() has something to do; -1: there is none */
	void *by_watch;	 /* of all struct guarded; tsearch(3) */
	struct list all; /* of struct guarded; all that are not in @due */
	struct list due; /* of struct guarded; to be looked at, since events were lost */
	struct list remnants;
};

/* An object that is guarded; embedded in its segment. */
struct guarded {
	int watch;	  /* 0: it is not guarded */
	struct list link; /* in guard->all or ->due, if it is guarded */
	struct object object;
	uint64_t size;	 /* the one that it must have */
	uint64_t writer; /* id of the client that was given the descriptor */
	bool changed;	 /* it had another size once, and may have holes: never reuse it */
	struct list remnant_link;
};

void guard_init(struct guard *g);
void guard_deinit(struct guard *g);

/* False: the object is not guarded, for want of inotify or memory. */
bool guard_begin(struct guard *g, struct guarded *w, const struct object *o, uint64_t size,
		 uint64_t writer);
void guard_end(struct guard *g, struct guarded *w);

/*
 * Looks at one object that has changed. False: there is none. If it had another size than it must
 * have, that is set right, and *@writer is the id of the client that may have done it; else 0.
 * Clients can make changes faster than we look at them, so the caller must also do other work.
 */
bool guard_next(struct guard *g, uint64_t *writer);

/*
 * Remembers a discarded object that somebody still has open for writing, so that it could be grown
 * again, or that could not be truncated yet. It is kept empty under its name until nobody has it
 * open any more.
 */
void guard_remnant(struct guard *g, const struct object *o, uint64_t writer);
/* Removes remnants that nobody has open any more. Looks at those of @writer and at a few others. */
void guard_sweep(struct guard *g, uint64_t writer);
