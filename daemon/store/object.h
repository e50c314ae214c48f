/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: the shared memory that holds the bytes of a segment. They are the daemon's, have mode
 * 0600, and are fully allocated before anyone maps them. A storage is a way to make them: shm.h has
 * one with names, memfd.h one with seals. All calls below block for as long as the kernel needs to
 * make or free the pages, touch nothing but their arguments, and may run on any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { OBJECT_E_OPEN = 1 };

struct object {
	uint64_t instance; /* of the daemon */
	uint64_t key;	   /* random; both together are its name, if it has one */
	int fd;		   /* keeps an object without a name; else -1 */
	uint32_t uid;	   /* the user that may have it open for writing, if it has a name */
};

struct storage {
	const char *name; /* as users write it */
	/*
	 * Objects with a name have no seals. We open them again by name, and truncate them even
	 * while others have them open. Their sizes have to be guarded (guard.h). Otherwise an
	 * object has seals instead: its size never changes, its pages stay until no process has it
	 * open any more (memfd.h), and only the client that writes it first ever writes it.
	 */
	bool named;
	/*
	 * Makes @o, whose instance and key are set, with exactly @size allocated bytes. *@fd_rw is
	 * a descriptor for its writer. -ENOSPC or -ENOMEM: no space; -ECANCELED: *@cancel was set.
	 */
	int (*create)(struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw);
	/* Opens another descriptor. @flags is O_RDONLY or O_RDWR. */
	int (*open)(const struct object *o, int flags, int *fd);
	/* True if its writer has sealed it, so that it can be written only through existing
	 * mappings. NULL: there are no seals. */
	bool (*is_sealed)(const struct object *o);
	/* Returns 1 if it may be open or mapped for writing, 0 if not, or a negative errno if the
	 * kernel does not say. */
	int (*is_written)(const struct object *o);
	/*
	 * Gives its pages back, now if it is named, or else when no process has it open any more.
	 * Returns OBJECT_E_OPEN if a process could add pages to it again, or a negative errno if
	 * they are still there, since a process does not let us free them (helper.h).
	 */
	int (*discard)(struct object *o);
	/* 1 if it is one of ours and has exactly @size bytes, 0 if not; or a negative errno. */
	int (*is_good)(const struct object *o, uint64_t size);
	/* Removes its name or descriptor. A process that maps it keeps its pages. */
	void (*destroy)(struct object *o);
};

/* Random 64 bits, never 0. */
int object_random(uint64_t *out);

/* For the storages: allocates @size bytes from the start of @fd. Fails as create() does. */
int object_allocate(int fd, uint64_t size, const atomic_bool *cancel);
