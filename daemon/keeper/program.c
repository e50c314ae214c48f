/* SPDX-License-Identifier: Apache-2.0 */
/* The path of our own program; see program.h. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keeper/program.h"

static bool is_our_program(const char *path)
{
	struct stat ours, there;

	return !stat("/proc/self/exe", &ours) && !stat(path, &there) &&
	       ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* Sets @path, and tells whether that is our program. */
static bool try(char path[PATH_MAX], const char *dir, size_t dir_len, const char *name)
{
	int n = snprintf(path, PATH_MAX, "%.*s%s%s", (int)dir_len, dir, dir_len ? "/" : "", name);

	return n < PATH_MAX && is_our_program(path);
}

/* False: @name is something else. */
static bool as_started(char path[PATH_MAX], const char *name, const char *directory)
{
	const char *dir = getenv("PATH");
	size_t len;

	if (strchr(name, '/'))
		return try(path, directory, *name == '/' ? 0 : strlen(directory), name);
	for (; dir; dir = dir[len] ? dir + len + 1 : NULL) {
		len = strcspn(dir, ":");
		if (*dir == '/' && len < PATH_MAX && try(path, dir, len, name))
			return true;
	}
	return false;
}

int program_find(char path[PATH_MAX], const char *name, const char *directory)
{
	ssize_t n;

	if (name && as_started(path, name, directory))
		return 0;
	n = readlink("/proc/self/exe", path, PATH_MAX - 1);
	path[n > 0 ? n : 0] = '\0';
	return n < 0 ? -errno : 0;
}
