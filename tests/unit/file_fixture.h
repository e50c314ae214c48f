/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory for each test of files. After the test it may contain only FILE_NAME, which the
 * including file defines, and the table of descriptors must be as before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/harness/limit.h"
#include "tests/harness/suite.h"

enum { TIMEOUT_S = 240, DIRECTORY_MAX = 512 };

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define I64(...) ((int64_t[]){ __VA_ARGS__ })

static char directory[DIRECTORY_MAX];
static char file[DIRECTORY_MAX + 16]; /* directory/FILE_NAME */
static unsigned fds_before;

static inline unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	assert_non_null(dir);
	for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static inline int begin(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	snprintf(directory, sizeof(directory), "%s/format.XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(directory))
		return -1;
	snprintf(file, sizeof(file), "%s/" FILE_NAME, directory);
	fds_before = count_entries("/proc/self/fd");
	return 0;
}

static inline int end(void **state)
{
	(void)state;
	unlink(file);
	assert_int_equal(count_entries("/proc/self/fd"), fds_before);
	return rmdir(directory);
}
