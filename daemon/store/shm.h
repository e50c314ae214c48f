/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX shared-memory objects, with random names in /dev/shm. They cannot be sealed. The calls
 * below are for what needs names: the catalog, and the guard of sizes. Any thread.
 */
#pragma once

#include "daemon/store/helper.h"
#include "daemon/store/object.h"

extern const struct storage storage_shm;

/* The catalog's object, whose name follows from the instance alone. */
struct object shm_object_of_catalog(uint64_t instance);

/* What struct storage says of them. */
int shm_object_create(const struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw);
int shm_object_open(const struct object *o, int flags, int *fd);
/* 0, or why it is there still: a negative errno. */
int shm_object_destroy(const struct object *o);

/* Does anybody have @o open for writing, or mapped for it? 1, 0, or a negative errno: the kernel
 * does not say. */
int shm_object_is_written(const struct object *o);

/* Has it that size, and no pages beyond? True also if it is not there. Waits for nobody. */
bool shm_object_has_size(const struct object *o, uint64_t size);
/*
 * Gives @o that size if it has another one, or pages beyond it. What had been cut off is a hole
 * then. Pages beyond its end are freed at once, even if somebody maps it; a process that touches
 * them gets SIGBUS. A negative errno: not done (helper.h).
 */
int shm_object_trim(const struct object *o, uint64_t size);

enum { OBJECT_PATH_MAX = HELPER_PATH_MAX };
void shm_object_path(const struct object *o, char path[OBJECT_PATH_MAX]);

/*
 * Gives the catalog of @instance a second name under which no daemon looks for one, and puts a copy
 * of what @beside_fd_peek has beside it. Of all that was set aside for our uid only the latest
 * remain. False: it could not be.
 */
bool shm_object_set_aside(uint64_t instance, int beside_fd_peek, char path[OBJECT_PATH_MAX]);

/* Unlinks all objects of @instance that belong to our uid. Returns how many there were. */
unsigned shm_object_destroy_instance(uint64_t instance);
/* The same for @many instances, whose ids follow each other from @first on. */
unsigned shm_object_destroy_instances(uint64_t first, uint64_t many);
/* Removes those of them that @known does not know. */
unsigned shm_object_destroy_unknown(uint64_t first, uint64_t many,
				    bool (*known)(void *context, uint64_t instance, uint64_t key),
				    void *context);
