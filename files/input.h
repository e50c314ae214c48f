/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file to be read at any place: a regular one where it is, anything else (a pipe, standard input)
 * read to its end into memory first.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "files/report.h"

struct input {
	int fd;	       /* of a regular file, else -1 */
	uint64_t base; /* where it starts in there: standard input may be in the middle of a file */
	uint64_t size;
	char *buffer; /* all of it, if @fd is -1 */
};

/* Opens @path, or standard input if that is "-". Close with input_close(). */
int input_open(struct input *in, const char *path, const struct report *to);
void input_close(struct input *in);

/* Exactly @size bytes from @offset on. -EINVAL: the file is shorter than that. */
int input_read(const struct input *in, void *dst, size_t size, uint64_t offset,
	       const struct report *to);

/* Reads up to @size bytes, fewer at the end only; at @offset, or from a stream if that is negative.
 */
ssize_t read_full(int fd, void *to, size_t size, off_t offset);
