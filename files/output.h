/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that replaces another one when it is complete; after a failure the old one is unchanged.
 * Until then it has no name, if the file system allows that. Devices, pipes and standard output are
 * written directly.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "files/report.h"

enum { FILE_CHUNK = 8 << 20 /* bytes between two calls of a progress function */ };

struct output {
	int fd;
	bool blocks;	 /* it is standard output, which we may not make non-blocking */
	char *target;	 /* the file to replace; NULL: write to @fd directly */
	char *temporary; /* its name for now; NULL: it has none */
	/* the progress function, which may be NULL, and its arguments */
	file_progress progress;
	void *context;
	uint64_t done, total;
	const struct report *to; /* outlives this */
};

/* Opens the output; @path "-" is standard output. Call output_deinit() even after a failure. */
int output_init(struct output *out, const char *path, const struct report *to);
/* Discards everything unless output_commit() was called. */
void output_deinit(struct output *out);

/* Writes without calling the progress function. */
int output_write(struct output *out, const void *bytes, size_t size);
/* Writes in chunks, and calls the progress function for each, at least once. */
int output_write_data(struct output *out, const void *bytes, uint64_t size);
int output_commit(struct output *out);

/* Calls @progress, which may be NULL, and reports it if that stops the operation. */
int file_tell(file_progress progress, void *context, uint64_t done, uint64_t total,
	      const struct report *to);
