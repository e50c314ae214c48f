/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the package's tests: the build and the installation, as a user finds them. */
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/harness/harness.h"

enum { PACKAGE_PATH = 512 };

/* The build tree; tests run in the root of the sources. */
static inline const char *package_build(void)
{
	const char *path = getenv("TL_TEST_BUILD");

	return path ? path : "build";
}

/* The file's text, to be freed; NULL: there is none. */
static inline char *package_read(const char *path)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;
	size_t size = 0;

	if (!f)
		return NULL;
	if (getdelim(&text, &size, '\0', f) < 0) {
		free(text);
		text = NULL;
	}
	fclose(f);
	return text;
}
