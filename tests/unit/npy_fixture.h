/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory for each test of .npy files. After the test it may contain only a.npy, and the table
 * of descriptors must be as before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/file.h"
#include "files/output.h"

#define FILE_NAME "a.npy"
#include "tests/harness/suite.h"
#include "tests/unit/file_fixture.h"

enum { FILE_MAX = 4096 };

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

#define CASE(name) TEST_WITH(name, begin, end)
