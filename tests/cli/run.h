/* SPDX-License-Identifier: Apache-2.0 */
/* Running the real command line against a real daemon, and the files that it is given. */
#pragma once

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/harness.h"

enum { ARGS_MAX = 24 };

struct result {
	int code; /* exit code; 256 + signal */
	char *out, *err;
};

static inline void result_deinit(struct result *r)
{
	free(r->out);
	free(r->err);
}

#define cleanup_result __attribute__((cleanup(result_deinit)))

static inline const char *cli_path(void)
{
	const char *path = getenv("TL_TEST_CLI");

	return path ? path : "build/bin/tensorlease";
}

static inline char *read_all(int fd, size_t *size)
{
	size_t room = 4096, used = 0;
	char *text = malloc(room);
	ssize_t n;

	must(text);
	while ((n = read(fd, text + used, room - used - 1)) > 0) {
		used += (size_t)n;
		if (room - used < 2) {
			room *= 2;
			text = realloc(text, room);
			must(text);
		}
	}
	must(n == 0);
	text[used] = '\0';
	if (size)
		*size = used;
	return text;
}

static inline int memory_file(void)
{
	int fd = memfd_create("output", MFD_CLOEXEC);

	must(fd >= 0);
	return fd;
}

static inline char *read_back(int fd)
{
	char *text;

	must(lseek(fd, 0, SEEK_SET) == 0);
	text = read_all(fd, NULL);
	close(fd);
	return text;
}

/* Runs the program; @socket NULL: without an address. */
static inline struct result run_at(const char *socket, const char *const *args)
{
	const char *argv[ARGS_MAX + 1] = { cli_path() };
	int out = memory_file(), err = memory_file(), status;
	struct result r;
	pid_t pid;

	for (int i = 0; args[i]; i++) {
		must(i + 2 < ARGS_MAX);
		argv[i + 1] = args[i];
	}
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		dup2(out, STDOUT_FILENO);
		dup2(err, STDERR_FILENO);
		if (socket)
			setenv("TENSORLEASE_SOCKET", socket, 1);
		execv(argv[0], (char **)(uintptr_t)argv);
		_exit(126);
	}
	must(waitpid(pid, &status, 0) == pid);
	r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
	r.out = read_back(out);
	r.err = read_back(err);
	return r;
}

#define run(d, ...) run_at((d)->socket, (const char *const[]){ __VA_ARGS__, NULL })

/* With that exit code, or the test fails and shows what the program said. */
static inline void must_exit(const struct result *r, int code)
{
	if (r->code != code)
		print_error("stdout: %s\nstderr: %s\n", r->out, r->err);
	must_be(r->code, code);
}

static inline cJSON *json_of(const struct result *r)
{
	cJSON *json = cJSON_Parse(r->out);

	if (!json)
		print_error("not JSON: %s\n", r->out);
	must(json);
	return json;
}

static inline void must_contain(const char *text, const char *part)
{
	if (!strstr(text, part))
		print_error("no '%s' in: %s\n", part, text);
	must(strstr(text, part));
}

/* ---- Files --------------------------------------------------------------------------------- */

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

/* As NumPy writes it, in the given version of the format. */
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

/* Publishes six floats, 2 x 3. */
static inline void put_six(const struct test_daemon *d, const char *name)
{
	struct path file = in(d, "six.npy");

	write_npy(file.text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	{
		cleanup_result struct result r = run(d, "put", name, file.text);

		must_exit(&r, 0);
	}
}
