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
	bool writes; /* a signal that asks this command to end stops it first */
};

void progress_start(struct progress *progress, const char *what, const char *name);
/* The same for what writes a file. If a signal asks this command to end, progress_step() and
 * progress_interrupted() stop that, which removes the file, and progress_end() ends the command. */
void progress_start_file(struct progress *progress, const char *what, const char *name);
/* Is a file_progress, whose @context is the struct progress. */
int progress_step(void *context, uint64_t done, uint64_t total);
/* Is a file_interrupted. */
int progress_interrupted(void *context);
void progress_end(struct progress *progress);
