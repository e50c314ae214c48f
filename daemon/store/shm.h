/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX shared-memory objects, with random names in /dev/shm. They cannot be sealed. The calls
 * below need names: they serve the catalog, and the guard of sizes. Any thread. */
#pragma once

#include "daemon/store/helper.h"
#include "daemon/store/object.h"

extern const struct storage storage_shm;

/* The catalog's object, whose name follows from the instance alone. */
struct object shm_object_of_catalog(uint64_t instance);

/* The calls of storage_shm; see struct storage. */
int shm_object_create(const struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw);
/* Opens the object. Fails with -ENOENT also if the file of that name is not ours. */
int shm_object_open(const struct object *o, int flags, int *fd);
/* Removes the object. Returns 0, or a negative errno if it is still there. */
int shm_object_destroy(const struct object *o);

/* Returns 1 if @o may be open or mapped for writing, 0 if not, or a negative errno if the kernel
 * does not say. */
int shm_object_is_written(const struct object *o);

/* True if the object has that size, and no pages beyond, or does not exist, or is not ours. Never
 * waits. */
bool shm_object_has_size(const struct object *o, uint64_t size);
/*
 * Gives @o that size if it has another one, or pages beyond it. A part that had been cut off is a
 * hole then. Pages beyond its end are freed at once, even if a process maps them; one that touches
 * them gets SIGBUS. A negative errno: not done (helper.h).
 */
int shm_object_trim(const struct object *o, uint64_t size);

enum { OBJECT_PATH_MAX = HELPER_PATH_MAX };
void shm_object_path(const struct object *o, char path[OBJECT_PATH_MAX]);

/*
 * Gives the catalog of @instance a second name, for which no daemon looks, and puts a copy of the
 * file @beside_fd_peek beside it. Only the latest such files of our uid are kept. False: it failed.
 */
bool shm_object_set_aside(uint64_t instance, int beside_fd_peek, char path[OBJECT_PATH_MAX]);

/* Unlinks all objects of @instance that belong to our uid. Returns how many there were. */
unsigned shm_object_destroy_instance(uint64_t instance);
/* Does the same for @many instances with consecutive ids from @first on. */
unsigned shm_object_destroy_instances(uint64_t first, uint64_t many);
/* Removes those objects of these instances that @known does not know. */
unsigned shm_object_destroy_unknown(uint64_t first, uint64_t many,
				    bool (*known)(void *context, uint64_t instance, uint64_t key),
				    void *context);
