/* SPDX-License-Identifier: Apache-2.0 */
/* The .npy files that tests give to the command line. */
#pragma once

#include <dirent.h>
#include <fcntl.h>

#include "tests/cli/run.h"
#include "tests/harness/client.h"

struct path {
	char text[128];
};

static inline struct path in(const struct test_daemon *d, const char *name)
{
	struct path p;

	snprintf(p.text, sizeof(p.text), "%s/%s", d->dir, name);
	return p;
}

static inline void write_file(const char *path, const void *bytes, size_t size)
{
	FILE *f = fopen(path, "we");

	must(f);
	must(fwrite(bytes, 1, size, f) == size);
	must(!fclose(f));
}

/* Writes a file as NumPy does, in the given version of the format. */
static inline void write_npy(const char *path, int version, const char *descr, bool fortran,
			     const char *shape, const void *bytes, size_t size)
{
	size_t fixed = version == 1 ? 10 : 12, length, total;
	char header[512], *file;
	int n;

	n = snprintf(header, sizeof(header), "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }",
		     descr, fortran ? "True" : "False", shape);
	total = (fixed + (size_t)n + 1 + 63) / 64 * 64;
	length = total - fixed;
	file = malloc(total + size);
	must(file);
	memset(file, ' ', total);
	memcpy(file, "\x93NUMPY", 6);
	file[6] = (char)version;
	file[7] = 0;
	for (size_t i = 8; i < fixed; i++)
		file[i] = (char)(length >> (8 * (i - 8)));
	memcpy(file + fixed, header, (size_t)n);
	file[total - 1] = '\n';
	if (size)
		memcpy(file + total, bytes, size);
	write_file(path, file, total + size);
	free(file);
}

static inline void must_be_same_file(const char *a, const char *b)
{
	int fa = open(a, O_RDONLY | O_CLOEXEC), fb = open(b, O_RDONLY | O_CLOEXEC);
	size_t na = 0, nb = 0;
	char *ta, *tb;

	must(fa >= 0 && fb >= 0);
	ta = read_all(fa, &na);
	tb = read_all(fb, &nb);
	must_be(na, nb);
	must(!memcmp(ta, tb, na));
	free(ta);
	free(tb);
	close(fa);
	close(fb);
}

static const float six[6] = { 0, 1.5F, -2, 3, 4, 1e9F };

/* Publishes six floats in two rows. */
static inline void put_six(const struct test_daemon *d, const char *name)
{
	struct path file = in(d, "six.npy");

	write_npy(file.text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	{
		cleanup_result struct result r = run(d, "put", name, file.text);

		must_exit(&r, 0);
	}
}

/* Counts the entries of a directory, of which . and .. are two. */
static inline unsigned entries_of(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	must(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* A file with three bytes, "abc". */
static inline struct path npy_file(const struct test_daemon *d)
{
	struct path path = in(d, "file.npy");

	write_npy(path.text, 1, "|u1", false, "(3,)", "abc", 3);
	return path;
}
