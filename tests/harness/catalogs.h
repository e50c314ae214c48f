/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon that is killed leaves: others remove it as soon as nobody has its catalogs open. */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/state/namespace.h"
#include "tests/harness/harness.h"

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

/*
 * How many objects are left when another daemon has looked once for what belongs to nobody. A
 * daemon of another test may look at the same catalog just then, so that both leave it to the next
 * one. Hence tests repeat this until it is as expected.
 */
static inline unsigned catalogs_left(const struct test_daemon *dead)
{
	struct test_daemon other = td_start();

	td_sync(&other);
	td_stop(&other);
	return td_objects(dead);
}
