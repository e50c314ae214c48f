/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells when nobody has an object without a name any more. Its pages are there as long as anybody
 * has a descriptor or a mapping of it, and so must its charge be. A lease of the kernel
 * (F_SETLEASE) would not do: it does not see descriptors that were opened with O_PATH, which keep
 * the pages too. But when the last of all of these goes, the kernel deletes the inode and tells
 * those who watch it (inotify). Nobody is polled, so that an object which somebody keeps costs
 * nothing but its charge. Loop thread only.
 */
#pragma once

#include <stdbool.h>

#include "util/list.h"

struct endings {
	int fd; /* of inotify, readable when ending_next() has something to do; -1: there is none */
	void *by_watch;	 /* of all struct ending that are watched; tsearch(3) */
	struct list all; /* the same */
	struct list due; /* of struct ending; over, and not returned by ending_next() yet */
	bool lost;	 /* events were; what is over has to be found out */
};

/* An object that is watched; embedded in its segment. */
struct ending {
	int watch;	  /* 0: it is not watched */
	struct list link; /* in endings->all or ->due, or in none */
	bool seen;	  /* used when events were lost */
};

/* -EMFILE or -ENOMEM: the kernel or the user's limits have no room for inotify. */
int endings_init(struct endings *e);
void endings_deinit(struct endings *e);

/* Watches the object of @fd_peek. -EUSERS: this user has no watches left (fs.inotify); -ENOMEM. */
int ending_begin(struct endings *e, struct ending *w, int fd_peek);
/* Watches it no longer. Fine if it is not watched. */
void ending_end(struct endings *e, struct ending *w);

/*
 * The next object that nobody has any more, not watched any more either, or NULL: none for now.
 * Looks at *@max events at most and counts them there.
 */
struct ending *ending_next(struct endings *e, unsigned *max);
