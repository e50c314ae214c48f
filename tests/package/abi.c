/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library and its headers promise what they promised when this version was recorded: tools/abi
 * prints that, `make` does so into abi/now of the build, and tests/abi/ has the record.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/package/package.h"

enum { LINES_MAX = 4096 };

struct lines {
	char *text;
	char *line[LINES_MAX];
	unsigned n;
};

static struct lines lines_read(const char *path)
{
	struct lines lines = { .text = package_read(path) };

	for (char *save, *l = lines.text ? strtok_r(lines.text, "\n", &save) : NULL; l;
	     l = strtok_r(NULL, "\n", &save)) {
		must(lines.n < LINES_MAX);
		lines.line[lines.n++] = l;
	}
	return lines;
}

static bool has_line(const struct lines *lines, const char *line)
{
	for (unsigned i = 0; i < lines->n; i++)
		if (!strcmp(lines->line[i], line))
			return true;
	return false;
}

/* Says which lines of @of are not in @in; how many. */
static unsigned differences(const struct lines *of, const struct lines *in, const char *words)
{
	unsigned n = 0;

	for (unsigned i = 0; i < of->n; i++) {
		if (has_line(in, of->line[i]))
			continue;
		fprintf(stderr, "%s: %s\n", words, of->line[i]);
		n++;
	}
	return n;
}

PLAIN_TEST(nothing_differs_from_the_record)
{
	char path[PACKAGE_PATH], version[16] = "";
	struct lines now, record;
	unsigned n;

	SKIP_UNLESS(sizeof(void *) == 8 && sizeof(long) == 8, "the record is of a 64-bit system");
	strncpy(version, tl_version(), sizeof(version) - 1);
	*strrchr(version, '.') = '\0';
	snprintf(path, sizeof(path), "%s/abi/now", package_build());
	now = lines_read(path);
	must(now.n > 100);
	snprintf(path, sizeof(path), "tests/abi/%s", version);
	record = lines_read(path);
	if (!record.n)
		fprintf(stderr, "%s is not there: make abi-record makes it, once for a version\n",
			path);
	must(record.n);
	n = differences(&record, &now, "promised, and not so any more");
	n += differences(&now, &record, "not in the record");
	if (n)
		fprintf(stderr,
			"client/libtensorlease.map says what may change, and when; if this may, "
			"`make abi-record` writes %s anew\n",
			path);
	must_be(n, 0);
	free(now.text);
	free(record.text);
}

int main(void)
{
	return suite_run();
}
