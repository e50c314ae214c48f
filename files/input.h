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

/* Checks the first bytes of a file, INPUT_HEAD unless it is shorter. Returns a negative errno after
 * reporting that they are of no such file. */
enum { INPUT_HEAD = 8 };
typedef int input_check(const unsigned char *head, size_t size, const struct report *to);

/* Opens @path, or standard input if that is "-". Close it with input_close(). What is not a regular
 * file may have no end: @check is called for it, and it is refused after @limit bytes, or when
 * memory cannot hold it. */
int input_open(struct input *in, const char *path, input_check *check, uint64_t limit,
	       const struct report *to);
void input_close(struct input *in);

/* Returns how many bytes of a stream are read into memory at most: all that this machine has. */
uint64_t input_memory_max(void);
/* Reports that a stream has more. */
int input_report_memory(const struct report *to);

/* Reads exactly @size bytes from @offset. -EINVAL: the file is shorter. */
int input_read(const struct input *in, void *dst, size_t size, uint64_t offset,
	       const struct report *to);

/* Opens a file for reading, or standard input if @path is "-". Returns a descriptor, or a negative
 * errno after reporting it. */
int input_open_fd(const char *path, const struct report *to);
/*
 * Reads up to @size bytes, and fewer only at the end; at @offset, or from a stream if that is
 * negative. Returns -1 with errno, for report_errno().
 */
ssize_t read_full(int fd, void *to, size_t size, off_t offset, const struct report *tell);
