/* SPDX-License-Identifier: Apache-2.0 */
/* A user namespace in which there is nobody else. */
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(text);
}

/* For the rest of this process, and for what it starts; our user has these numbers there. */
static inline bool own_user_namespace(uid_t uid, gid_t gid)
{
	char uids[40], gids[40];

	snprintf(uids, sizeof(uids), "%u %u 1", uid, geteuid());
	snprintf(gids, sizeof(gids), "%u %u 1", gid, getegid());
	return !unshare(CLONE_NEWUSER) && write_text("/proc/self/setgroups", "deny") &&
	       write_text("/proc/self/uid_map", uids) && write_text("/proc/self/gid_map", gids);
}
