/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that killed daemons left in /dev/shm. Each namespace of a daemon has a catalog there,
 * which the daemon, its keeper and its clients have open or mapped as long as they live. So a
 * daemon's objects belong to no process if nobody has one of its catalogs open. They never will:
 * ids are random, and only a keeper has a daemon's instances taken over. An object that is open for
 * writing nevertheless stays, and the first catalog with it, by which they are found again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define LEFTOVERS_OF_ALL ((uid_t)-1) /* of all users, as far as we may look into their files */

struct leftovers {
	unsigned catalogs, objects; /* objects, and the catalogs among them */
	uint64_t bytes;
	unsigned unexamined; /* objects of other users, which we may not lease without CAP_LEASE */
};

/* Counts the objects of @uid that belong to no process, and with @remove removes them. Any thread.
 */
struct leftovers leftovers_find(uid_t uid, bool remove);
/* The same for catalogs and facts that daemons have set aside, which none of them removes. */
struct leftovers leftovers_aside(uid_t uid, bool remove);
