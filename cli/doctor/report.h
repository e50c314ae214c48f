/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What doctor has found out. A probe adds a row: its finding and, unless that is fine, advice. The
 * rows are printed as they come, or as one JSON object in the end.
 */
#pragma once

#include "cli/cli.h"
#include "cli/out.h"

enum doctor_result {
	DOCTOR_OK,
	DOCTOR_WARN,	/* works, with a drawback */
	DOCTOR_FAIL,	/* something necessary does not work */
	DOCTOR_SKIPPED, /* could not be tried, or there is nothing to try */
	DOCTOR_RESULTS,
};

struct doctor {
	struct cli *cli;
	const char *section;
	cJSON *probes; /* with --json */
	unsigned said[DOCTOR_RESULTS];
};

void doctor_section(struct doctor *d, const char *section);

/* Adds a row. @advice may be NULL, and is left out if the result is DOCTOR_OK. */
__attribute__((format(printf, 5, 6))) void doctor_say(struct doctor *d, enum doctor_result result,
						      const char *probe, const char *advice,
						      const char *format, ...);

/* Prints what is left to print, and returns the exit code. */
int doctor_sum_up(struct doctor *d);

/* Reads the first line of a file that begins with @key into @text, without that and cut to fit; ""
 * if there is none. */
const char *doctor_read(const char *path, const char *key, char *text, size_t size);
