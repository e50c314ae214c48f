/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files made by hand for the tests of the formats, in a directory for each test. After the test it
 * may contain only a.bin, and the table of descriptors must be as before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/bytes.h"
#include "files/file.h"

#define FILE_NAME "a.bin"
#include "tests/harness/suite.h"
#include "tests/unit/file_fixture.h"

enum { BYTES_MAX = 1 << 17 };

/* ---- bytes ---- */

struct bytes {
	size_t n;
	unsigned char at[BYTES_MAX];
};

static inline void add(struct bytes *b, const void *bytes, size_t n)
{
	assert_true(b->n + n <= BYTES_MAX);
	if (n)
		memcpy(b->at + b->n, bytes, n);
	b->n += n;
}

static inline void add_text(struct bytes *b, const char *text)
{
	add(b, text, strlen(text));
}

static inline void add_number(struct bytes *b, uint64_t value, int size)
{
	unsigned char number[8];

	put_number(number, value, size);
	add(b, number, (size_t)size);
}

static inline void put_file(const void *bytes, size_t size)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, size), (ssize_t)size);
	close(fd);
}

/* ---- what must happen ---- */

/* Opens the file and reads everything. Returns the first error. */
static inline int read_all_of(enum file_format format, const char *path, char *err)
{
	struct tensor_file f;
	int r = file_open(&f, path, format, err, FILE_ERROR_TEXT);

	if (r)
		return r;
	for (size_t i = 0; i < f.count && !r; i++) {
		void *data = malloc(f.entries[i].nbytes + 1);

		assert_non_null(data);
		r = file_read_entry(&f, i, data, NULL, NULL, err, FILE_ERROR_TEXT);
		free(data);
	}
	file_close(&f);
	return r;
}

/*
 * The file must be refused with that text in the reason, which starts with its name. So must the
 * same bytes through a pipe.
 */
static inline void assert_refused(enum file_format format, const char *what, const struct bytes *b,
				  int error, const char *reason)
{
	char err[FILE_ERROR_TEXT] = "", path[32];
	int ends[2], r;

	put_file(b->at, b->n);
	r = read_all_of(format, file, err);
	if (r != error || !strstr(err, reason) || strncmp(err, file, strlen(file)) != 0)
		fail_msg("%s: %d, \"%s\"; should be %d, \"...%s...\"", what, r, err, error, reason);
	for (const char *c = err; *c; c++)
		assert_true((unsigned char)*c >= ' ');
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(write(ends[1], b->at, b->n), (ssize_t)b->n);
	close(ends[1]);
	snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
	r = read_all_of(format, path, err);
	close(ends[0]);
	if (r != error)
		fail_msg("%s through a pipe: %d, \"%s\"; should be %d", what, r, err, error);
}

/* A stream that does not begin as such a file does must be refused before it ends. */
static inline void assert_refused_at_once(enum file_format format, const char *head, size_t size,
					  const char *reason)
{
	char err[FILE_ERROR_TEXT] = "", path[32];
	int ends[2], r;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(write(ends[1], head, size), (ssize_t)size);
	snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
	r = read_all_of(format, path, err);
	close(ends[0]);
	close(ends[1]);
	if (r != -EINVAL || !strstr(err, reason))
		fail_msg("%d, \"%s\"; should be \"...%s...\"", r, err, reason);
}

/* Every shorter file must be refused too, for whatever reason. */
static inline void assert_truncations_refused(enum file_format format, const struct bytes *b)
{
	char err[FILE_ERROR_TEXT];

	for (size_t n = 0; n < b->n; n++) {
		put_file(b->at, n);
		if (read_all_of(format, file, err) == 0)
			fail_msg("the first %zu of %zu bytes are taken for a file", n, b->n);
	}
}

/* Whatever one byte is changed to, the worst result may be a refusal. */
static inline void survive_changes(enum file_format format, struct bytes *b)
{
	static const unsigned char changes[] = { 0, 1, 0x7f, 0x80, 0xff };
	char err[FILE_ERROR_TEXT];

	for (size_t i = 0; i < b->n; i++) {
		unsigned char was = b->at[i];

		for (size_t j = 0; j < COUNT(changes); j++) {
			struct tensor_file f;

			b->at[i] = changes[j];
			put_file(b->at, b->n);
			if (file_open(&f, file, format, err, sizeof(err)))
				continue;
			for (size_t k = 0; k < f.count && f.nbytes < 1 << 20; k++) {
				void *data = malloc(f.entries[k].nbytes + 1);

				assert_non_null(data);
				file_read_entry(&f, k, data, NULL, NULL, err, sizeof(err));
				free(data);
			}
			file_close(&f);
		}
		b->at[i] = was;
	}
}

#define CASE(name) TEST_WITH(name, begin, end)
