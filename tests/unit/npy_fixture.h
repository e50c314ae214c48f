/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory for each test of .npy files, which must be empty but for a.npy after it; so must the table
 * of descriptors be as it was.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/npy.h"
#include "files/output.h"

enum { TIMEOUT_S = 60, FILE_MAX = 4096, DIRECTORY_MAX = 512 };

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define I64(...) ((int64_t[]){ __VA_ARGS__ })

static char directory[DIRECTORY_MAX];
static char file[DIRECTORY_MAX + 16]; /* directory/a.npy */
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
	snprintf(directory, sizeof(directory), "%s/npy.XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(directory))
		return -1;
	snprintf(file, sizeof(file), "%s/a.npy", directory);
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

static const struct {
	const char *descr;
	DLDataType t;
} shared[] = {
	{ "|b1", { kDLBool, 8, 1 } },	  { "|i1", { kDLInt, 8, 1 } },
	{ "<i2", { kDLInt, 16, 1 } },	  { "<i4", { kDLInt, 32, 1 } },
	{ "<i8", { kDLInt, 64, 1 } },	  { "|u1", { kDLUInt, 8, 1 } },
	{ "<u2", { kDLUInt, 16, 1 } },	  { "<u4", { kDLUInt, 32, 1 } },
	{ "<u8", { kDLUInt, 64, 1 } },	  { "<f2", { kDLFloat, 16, 1 } },
	{ "<f4", { kDLFloat, 32, 1 } },	  { "<f8", { kDLFloat, 64, 1 } },
	{ "<c8", { kDLComplex, 64, 1 } }, { "<c16", { kDLComplex, 128, 1 } },
};

#define CASE(test) cmocka_unit_test_setup_teardown(test, begin, end)
