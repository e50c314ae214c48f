/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows the progress of a transfer on stderr, if that is a terminal and the transfer takes more
 * than a second.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *what; /* such as "reading" */
	const char *name;
	int64_t started_ns; /* CLOCK_MONOTONIC, as below */
	int64_t shown_ns;
	bool shown;
};

void progress_start(struct progress *progress, const char *what, const char *name);
/* Is a file_progress, whose @context is the struct progress. */
int progress_step(void *context, uint64_t done, uint64_t total);
void progress_end(struct progress *progress);
