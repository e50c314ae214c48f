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

struct memfd_watches {
	int fd; /* of inotify, readable when memfd_watch_next() has something to do; -1: there is
		   none */
	void *by_watch;	 /* of all struct memfd_watch that are watched; tsearch(3) */
	struct list all; /* of struct memfd_watch: watched, and not in @due */
	struct list due; /* of struct memfd_watch: over, and not returned yet */
	bool lost;	 /* events were lost: finds out which ones are over */
};

/* An object that is watched; embedded in its segment. */
struct memfd_watch {
	int watch;	  /* 0: it is not watched */
	struct list link; /* in memfd_watches.all or .due, or in none */
	bool seen;	  /* used when events were lost */
};

/* Returns -EMFILE or -ENOMEM if the kernel or the user's limits have no space for inotify. */
int memfd_watches_init(struct memfd_watches *e);
void memfd_watches_deinit(struct memfd_watches *e);

/* Watches the object of @fd_peek. -EUSERS: this user has no watches left (fs.inotify); -ENOMEM. */
int memfd_watch_begin(struct memfd_watches *e, struct memfd_watch *w, int fd_peek);
/* Stops watching it. Fine if it is not watched. */
void memfd_watch_end(struct memfd_watches *e, struct memfd_watch *w);

/* The next object that no process has any more, and that is not watched any more either; or NULL
 * for now. Looks at *@max events at most and counts them there. */
struct memfd_watch *memfd_watch_next(struct memfd_watches *e, unsigned *max);
