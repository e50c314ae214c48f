/* SPDX-License-Identifier: Apache-2.0 */
/* How far a transfer is, on stderr if that is a terminal and it takes more than a second. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *what; /* "reading" */
	const char *name;
	int64_t started_ns; /* CLOCK_MONOTONIC */
	int64_t shown_ns;
	bool shown;
};

void progress_start(struct progress *progress, const char *what, const char *name);
/* An file_progress: @context is the struct progress. */
int progress_step(void *context, uint64_t done, uint64_t total);
void progress_end(struct progress *progress);
