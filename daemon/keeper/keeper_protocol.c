/* SPDX-License-Identifier: Apache-2.0 */
/* What keeper and daemon share: messages, tags, and tables of descriptors. */
#include <errno.h>
#include <search.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keeper/keeper_protocol.h"
#include "util/cleanup.h"
#include "util/fd.h"

/* ---- descriptors by tag; see keeper_protocol.h ----------------------------------------------- */

static int by_tag(const void *a, const void *b)
{
	return strcmp(((const struct kept *)a)->tag, ((const struct kept *)b)->tag);
}

int kept_add(struct kept_table *table, const char *tag, int fd_take)
{
	struct kept *kept = malloc(sizeof(*kept)), **found;

	if (!kept) {
		fd_close(fd_take);
		return -ENOMEM;
	}
	snprintf(kept->tag, sizeof(kept->tag), "%s", tag);
	kept->fd = fd_take;
	found = tsearch(kept, &table->tree, by_tag);
	if (found && *found == kept) {
		table->count++;
		return 0;
	}
	if (found) {
		fd_close((*found)->fd);
		(*found)->fd = take_fd(&kept->fd);
	}
	fd_close(kept->fd);
	free(kept);
	return found ? 0 : -ENOMEM;
}

int kept_take(struct kept_table *table, const char *tag)
{
	struct kept key, *kept, *const *found;
	int fd;

	snprintf(key.tag, sizeof(key.tag), "%s", tag);
	found = tfind(&key, &table->tree, by_tag);
	if (!found)
		return -1;
	kept = *found;
	fd = kept->fd;
	tdelete(kept, &table->tree, by_tag);
	free(kept);
	table->count--;
	return fd;
}

struct visit {
	void (*each)(const struct kept *kept, void *context);
	void *context;
};

static void visit_node(const void *node, VISIT order, void *context)
{
	const struct visit *visit = context;

	if (order == postorder || order == leaf)
		visit->each(*(const struct kept *const *)node, visit->context);
}

void kept_each(const struct kept_table *table, void (*each)(const struct kept *kept, void *context),
	       void *context)
{
	struct visit visit = { .each = each, .context = context };

	twalk_r(table->tree, visit_node, &visit);
}

const struct kept *kept_any(const struct kept_table *table)
{
	return table->tree ? *(const struct kept *const *)table->tree : NULL;
}

void kept_deinit(struct kept_table *table)
{
	const struct kept *kept;

	while ((kept = kept_any(table)))
		fd_close(kept_take(table, kept->tag));
}

/* ---- the path of our own program; see keeper_protocol.h -------------------------------------- */

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

/* Finds the path by which we were started as @name. False: @name is something else. */
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
