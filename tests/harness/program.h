/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that tests make and run. They lie below the build, since /tmp may be mounted noexec. */
#pragma once

#include "tests/harness/harness.h"

enum { PROGRAM_DIR = 512 };

/* Makes a directory for programs, which the test removes. */
static inline void program_directory(char path[PROGRAM_DIR])
{
	const char *build = getenv("TL_TEST_BUILD");
	char *full = realpath(build ? build : "build", NULL);

	must(full && snprintf(path, PROGRAM_DIR, "%s/program-XXXXXX", full) < PROGRAM_DIR);
	free(full);
	must(mkdtemp(path));
}
