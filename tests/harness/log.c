/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/log.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/harness.h"

char *log_read(const char *dir)
{
	char path[128], *text = NULL;
	size_t size = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", dir);
	f = fopen(path, "re");
	if (!f)
		return NULL;
	if (getdelim(&text, &size, '\0', f) < 0) { /* it is empty */
		free(text);
		text = strdup("");
	}
	fclose(f);
	return text;
}

/* Whether a keeper says that a daemon ended by a signal. Tests kill with SIGKILL only. */
static bool has_crash(const char *log)
{
	static const char why[] = "why=\"killed by signal ";
	/* glibc ends a process so that has too little memory to make threads (2.41) */
	const bool by_glibc = strstr(log, "The futex facility returned an unexpected error code");
	int signal;

	for (const char *at = log; (at = strstr(at, why)); at++) {
		signal = atoi(at + strlen(why));
		if (signal != SIGKILL && !(signal == SIGABRT && by_glibc))
			return true;
	}
	return false;
}

static bool has_report(const char *log)
{
	static const char *const words[] = { "ERROR: AddressSanitizer", "ERROR: LeakSanitizer",
					     "WARNING: ThreadSanitizer", "runtime error: " };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strstr(log, words[i]))
			return true;
	return false;
}

void log_must_have_no_crash(const char *dir)
{
	char *log = log_read(dir);

	must(log);
	if (has_crash(log) || has_report(log)) {
		print_error("crashed: a daemon, whose stderr is:\n%s\n", log);
		must(!"a daemon crashed");
	}
	free(log);
}

void log_show(const char *dir)
{
	char *log = log_read(dir);

	if (log && *log)
		fprintf(stderr, "a daemon's stderr:\n%s\n", log);
	free(log);
}
