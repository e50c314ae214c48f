/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the catalogs of a daemon that is killed: others remove those that nobody has open. */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/state/namespace.h"

enum { CATALOGS_HELD = 64 };

struct catalogs_held {
	int fds[CATALOGS_HELD];
	int n;
};

static inline void catalogs_hold(uint64_t instance, struct catalogs_held *held)
{
	uint64_t id, key;
	struct dirent *e;
	DIR *dir = opendir("/dev/shm");

	held->n = 0;
	while (dir && held->n < CATALOGS_HELD && (e = readdir(dir))) {
		if (sscanf(e->d_name, "tensorlease-%16" SCNx64 "-%16" SCNx64, &id, &key) == 2 &&
		    !key && id - instance < NAMESPACES_MAX)
			held->fds[held->n++] = openat(dirfd(dir), e->d_name,
						      O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	}
	if (dir)
		closedir(dir);
}

static inline void catalogs_release(struct catalogs_held *held)
{
	while (held->n)
		close(held->fds[--held->n]);
}
