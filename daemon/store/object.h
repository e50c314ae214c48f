/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX shared-memory objects: daemon-owned, 0600, with random names, fully allocated before anyone
 * maps them. All calls block for as long as the kernel needs to make or free the pages, touch
 * nothing but their arguments, and may run on any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Identifies an object by the daemon's instance and a random number. Its name follows from these.
 */
struct object {
	uint64_t instance;
	uint64_t key;
};

/* Random 64 bits, never 0. */
int object_random(uint64_t *out);

/* Creates @o with exactly @size allocated bytes. -ENOSPC: no room in /dev/shm; -ECANCELED: *@cancel
 * was set. */
int object_create(const struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw);

/* Opens a further descriptor of @o. @flags is O_RDONLY or O_RDWR. */
int object_open(const struct object *o, int flags, int *fd);

/* Does anybody have @o open for writing, or mapped for it? 1, 0, or a negative errno: the kernel
 * does not say. */
int object_is_written(const struct object *o);

/* Gives @o that size if it has another one, or pages beyond it. True: it had, and what had been cut
 * off is a hole now. */
bool object_resize(const struct object *o, uint64_t size);

/*
 * Frees its pages at once, even if somebody maps it; a process that touches them gets SIGBUS.
 * False: they are still there, since the object could not be opened.
 */
bool object_discard(const struct object *o);
/* Unlinks @o. A process that maps it keeps its pages. */
void object_destroy(const struct object *o);

enum { OBJECT_PATH_MAX = 64 };
void object_path(const struct object *o, char path[OBJECT_PATH_MAX]);

/* The catalog's object, whose name follows from the instance alone. */
struct object object_of_catalog(uint64_t instance);

/* Unlinks all objects of @instance that belong to our uid. Returns how many there were. */
unsigned object_destroy_instance(uint64_t instance);
