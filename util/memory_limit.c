/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/memory_limit.h"

static uint64_t limit_read(const char *path)
{
	FILE *f = fopen(path, "re");
	char text[64] = "";

	if (f) {
		(void)!fgets(text, sizeof(text), f);
		fclose(f);
	}
	return *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

/* In a container @path may be the host's, of which nothing but @root is there. */
static uint64_t group_limit(const char *root, const char *path, const char *file)
{
	uint64_t lowest = UINT64_MAX, value;
	char at[4096], *end;

	snprintf(at, sizeof(at), "%s%s", root, path);
	for (;;) {
		end = at + strlen(at);
		snprintf(end, sizeof(at) - (size_t)(end - at), "/%s", file);
		value = limit_read(at);
		lowest = value < lowest ? value : lowest;
		*end = '\0';
		if (end <= at + strlen(root))
			return lowest;
		*strrchr(at, '/') = '\0';
	}
}

uint64_t memory_limit_of(const char *groups, const char *root)
{
	FILE *f = fopen(groups, "re");
	uint64_t lowest = UINT64_MAX, value;
	char line[4096], memory[256], *path;

	snprintf(memory, sizeof(memory), "%s/memory", root);
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		path = strchr(line, ':');
		path = path ? strchr(path + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		if (!strcmp(line, "0:"))
			value = group_limit(root, path, "memory.max");
		else if (strstr(line, ":memory"))
			value = group_limit(memory, path, "memory.limit_in_bytes");
		else
			continue;
		lowest = value < lowest ? value : lowest;
	}
	if (f)
		fclose(f);
	return lowest;
}

uint64_t memory_limit(void)
{
	return memory_limit_of("/proc/self/cgroup", "/sys/fs/cgroup");
}
