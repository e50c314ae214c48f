/* SPDX-License-Identifier: Apache-2.0 */
/* Objects without names, and how the end of their last user is noticed. */
#pragma once

#include <stdbool.h>

#include "daemon/store/object.h"
#include "util/list.h"

/*
 * Sealed memfds. Nobody can change the size of one, not even a process of the daemon's own user,
 * and once it holds a published tensor nobody can map it for writing any more. They have no names:
 * a killed daemon's memfds go when the last process that uses them does. They lie in no mounted
 * file system, so that only memory and cgroups limit them.
 */

extern const struct storage storage_memfd;

/*
 * Tells when no process has a nameless object any more. Its pages exist as long as any process has
 * a descriptor or a mapping of it, and so long it must be charged. A lease of the kernel
 * (F_SETLEASE) would not do: it does not see descriptors that were opened with O_PATH, which keep
 * the pages too. But when the last of all of these goes, the kernel deletes the inode and tells its
 * watchers (inotify). Nothing is polled, so that an object which a process keeps costs nothing but
 * its charge. Loop thread only.
 */

struct endings {
	int fd; /* of inotify, readable when ending_next() has something to do; -1: there is none */
	void *by_watch;	 /* of all struct ending that are watched; tsearch(3) */
	struct list all; /* the same */
	struct list due; /* of struct ending; over, but not returned by ending_next() yet */
	bool lost;	 /* events were lost: finds out which ones are over */
};

/* An object that is watched; embedded in its segment. */
struct ending {
	int watch;	  /* 0: it is not watched */
	struct list link; /* in endings->all or ->due, or in none */
	bool seen;	  /* used when events were lost */
};

/* Returns -EMFILE or -ENOMEM if the kernel or the user's limits have no space for inotify. */
int endings_init(struct endings *e);
void endings_deinit(struct endings *e);

/* Watches the object of @fd_peek. -EUSERS: this user has no watches left (fs.inotify); -ENOMEM. */
int ending_begin(struct endings *e, struct ending *w, int fd_peek);
/* Stops watching it. Fine if it is not watched. */
void ending_end(struct endings *e, struct ending *w);

/* The next object that no process has any more, and that is not watched any more either; or NULL
 * for now. Looks at *@max events at most and counts them there. */
struct ending *ending_next(struct endings *e, unsigned *max);
