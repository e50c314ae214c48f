/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/log.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/harness.h"

char *log_read(const char *dir)
{
	char path[128];
	char *text = calloc(1, 64 * KIB);
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", dir);
	f = fopen(path, "re");
	if (!text || !f) {
		free(text);
		return NULL;
	}
	(void)!fread(text, 1, 64 * KIB - 1, f);
	fclose(f);
	return text;
}

void log_show(const char *dir)
{
	char *log = log_read(dir);

	if (log && *log)
		fprintf(stderr, "a daemon's stderr:\n%s\n", log);
	free(log);
}
