/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits, in a directory that stands for /sys/fs/cgroup. */
#include <ftw.h>
#include <sys/stat.h>

#include "tests/harness/harness.h"
#include "util/memory_limit.h"

static char root[64];

static void file_write(const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	f = fopen(path, "we");
	must(f && fputs(text, f) >= 0);
	must_be(fclose(f), 0);
}

static void group_make(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	must_be(mkdir(path, 0700), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int begin(void **state)
{
	snprintf(root, sizeof(root), "/tmp/tl-groups-XXXXXX");
	must(mkdtemp(root));
	group_make("memory");
	group_make("memory/a");
	group_make("a");
	group_make("a/b");
	return test_setup(state);
}

static int end(void **state)
{
	return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS) | test_teardown(state);
}

#define LIMIT_TEST(name) TEST_WITH(name, begin, end)

/* The limit of a process that is in @groups. */
static uint64_t limit_in(const char *groups)
{
	char path[256];

	file_write("groups", groups);
	snprintf(path, sizeof(path), "%s/groups", root);
	return memory_limit_of(path, root);
}

LIMIT_TEST(the_lowest_limit_on_the_way_up_counts)
{
	file_write("memory.max", "5000\n");
	file_write("a/memory.max", "4000\n");
	file_write("a/b/memory.max", "max\n");
	must_be(limit_in("0::/a/b\n"), 4000);
	file_write("a/b/memory.max", "3000\n");
	must_be(limit_in("0::/a/b\n"), 3000);
	must_be(limit_in("0::/a\n"), 4000);
	must_be(limit_in("0::/\n"), 5000);
}

LIMIT_TEST(limits_of_the_first_version_count_too)
{
	file_write("memory/memory.limit_in_bytes", "9223372036854771712\n");
	file_write("memory/a/memory.limit_in_bytes", "6000\n");
	must_be(limit_in("5:cpuset:/b\n4:memory:/a\n0::/\n"), 6000);
	file_write("memory.max", "5000\n");
	must_be(limit_in("4:memory:/a\n0::/\n"), 5000);
}

LIMIT_TEST(in_a_container_only_the_root_may_be_there)
{
	file_write("memory/memory.limit_in_bytes", "7000\n");
	must_be(limit_in("4:memory:/docker/0123\n"), 7000);
	file_write("memory.max", "5000\n");
	must_be(limit_in("0::/docker/0123\n"), 5000);
}

LIMIT_TEST(without_a_limit_there_is_none)
{
	file_write("a/memory.max", "max\n");
	must(limit_in("0::/a\n1:cpu:/\nwhat is this\n") == UINT64_MAX);
	must(memory_limit_of("/nonexistent", root) == UINT64_MAX);
}

int main(void)
{
	return suite_run();
}
