/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: what holds the bytes of a segment. They are the daemon's, have mode 0600, and are fully
 * allocated before anyone maps them. A storage is a way to make them: shm.h has one with names,
 * memfd.h one with seals. All calls below block for as long as the kernel needs to make or free the
 * pages, touch nothing but their arguments, and may run on any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { OBJECT_E_OPEN = 1 };

struct object {
	uint64_t instance; /* of the daemon */
	uint64_t key;	   /* random; both together are its name, if it has one */
	int fd;		   /* what keeps it, if it has no name; else -1 */
	uint32_t uid;	   /* who may have it open for writing, if it has a name */
};

struct storage {
	const char *name; /* as users write it */
	/*
	 * Its objects have a name, by which we open them again and truncate them whoever has them
	 * open, and no seals. Their sizes have to be guarded (guard.h). Otherwise an object has
	 * seals instead: its size never changes, its pages stay until nobody has it open any more
	 * (ending.h), and the client that writes it first is the only one that ever does.
	 */
	bool named;
	/*
	 * Makes @o, whose instance and key are set, with exactly @size allocated bytes. *@fd_rw is
	 * a descriptor for its writer. -ENOSPC or -ENOMEM: no room; -ECANCELED: *@cancel was set.
	 */
	int (*create)(struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw);
	/* Opens a further descriptor. @flags is O_RDONLY or O_RDWR. */
	int (*open)(const struct object *o, int flags, int *fd);
	/* Has its writer seen to it that nobody can write it, but through a mapping that is there
	 * already? NULL: there are no seals. */
	bool (*is_sealed)(const struct object *o);
	/*
	 * May somebody have it open for writing, or mapped for it? 1, 0, or a negative errno: the
	 * kernel does not say.
	 */
	int (*is_written)(const struct object *o);
	/*
	 * Gives its pages back, now if it is named, or else when nobody has it open any more.
	 * OBJECT_E_OPEN: somebody could add pages to it again; a negative errno: they are still
	 * there, since somebody does not let us (helper.h).
	 */
	int (*discard)(struct object *o);
	/* Is it one of ours, and has exactly @size bytes? */
	bool (*is_good)(const struct object *o, uint64_t size);
	/* Removes what it is known by. A process that maps it keeps its pages. */
	void (*destroy)(struct object *o);
};

/* Random 64 bits, never 0. */
int object_random(uint64_t *out);

/* For the storages: allocates @size bytes from the start of @fd. Fails as create() does. */
int object_allocate(int fd, uint64_t size, const atomic_bool *cancel);
