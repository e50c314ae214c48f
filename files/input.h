/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that can be read at any offset. A regular file is read where it is. Anything else (a pipe,
 * standard input) is first read to its end into memory.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "files/report.h"

struct input {
	int fd;	       /* -1 if it is not a regular file */
	uint64_t base; /* where the input starts in it, as standard input may */
	uint64_t size;
	char *buffer; /* everything, if @fd is -1 */
};

/* Opens @path, or standard input if that is "-". Close it with input_close(). */
int input_open(struct input *in, const char *path, const struct report *to);
void input_close(struct input *in);

/* Reads exactly @size bytes from @offset. -EINVAL: the file is shorter. */
int input_read(const struct input *in, void *dst, size_t size, uint64_t offset,
	       const struct report *to);

/*
 * Reads up to @size bytes, and fewer only at the end; at @offset, or from a stream if that is
 * negative.
 */
ssize_t read_full(int fd, void *to, size_t size, off_t offset);
