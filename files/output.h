/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that takes another one's place once it is whole: after a failure there is what there was
 * before. Without a name until then, where that works. Devices, pipes and standard output are
 * written directly.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "files/report.h"

enum { FILE_CHUNK = 8 << 20 /* bytes between two calls of a progress function */ };

struct output {
	int fd;
	char *target;	 /* whose place; NULL: what @fd is gets written directly */
	char *temporary; /* beside it, or NULL if it has no name now */
	/* how far it is, for the caller's progress function, which may be NULL */
	file_progress progress;
	void *context;
	uint64_t done, total;
	const struct report *to; /* outlives us */
};

/* On failure, too, output_deinit() is due. @path "-": standard output. */
int output_init(struct output *out, const char *path, const struct report *to);
/* Without output_commit() nothing was written. */
void output_deinit(struct output *out);

/* Without a word to the progress function. */
int output_write(struct output *out, const void *bytes, size_t size);
/* In chunks, each of which counts as progress; at least one call of it. */
int output_write_data(struct output *out, const void *bytes, uint64_t size);
int output_commit(struct output *out);

/* Calls @progress, which may be NULL; says so if it stops. */
int file_tell(file_progress progress, void *context, uint64_t done, uint64_t total,
	      const struct report *to);
