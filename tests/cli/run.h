/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the real command line with a real daemon, and makes the files that it is given. */
#pragma once

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/harness/harness.h"
#include "tests/harness/process.h"

enum { ARGS_MAX = 24 };

struct result {
	int code; /* exit code, or 256 + signal */
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
	off_t end = lseek(fd, 0, SEEK_END);
	size_t used = 0;
	char *text;
	ssize_t n;

	must(end >= 0);
	text = malloc((size_t)end + 1);
	must(text);
	while ((n = pread(fd, text + used, (size_t)end - used, (off_t)used)) > 0)
		used += (size_t)n;
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
	char *text = read_all(fd, NULL);

	close(fd);
	return text;
}

/* The program while it runs. Its output goes to files. */
struct running {
	pid_t pid;
	int out, err;
};

/*
 * Starts the program, which prints to @out, or to a file of its own if that is negative. If @socket
 * is NULL, it gets no address. Not by fork(), which would take
 * leases and a connection for a child that does not use them.
 */
static inline struct running start_printing_to(int out, const char *socket, const char *const *args)
{
	const char *argv[ARGS_MAX + 1] = { cli_path() }, *before = getenv("TENSORLEASE_SOCKET");
	struct running r = { .out = memory_file(), .err = memory_file() };
	posix_spawn_file_actions_t actions;
	char *kept = before ? strdup(before) : NULL;

	for (int i = 0; args[i]; i++) {
		must(i + 2 < ARGS_MAX);
		argv[i + 1] = args[i];
	}
	if (socket)
		must_be(setenv("TENSORLEASE_SOCKET", socket, 1), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out < 0 ? r.out : out, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, r.err, STDERR_FILENO);
	must_be(posix_spawn(&r.pid, argv[0], &actions, NULL, (char **)(uintptr_t)argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	if (kept)
		setenv("TENSORLEASE_SOCKET", kept, 1);
	else
		unsetenv("TENSORLEASE_SOCKET");
	free(kept);
	return r;
}

static inline struct running start_at(const char *socket, const char *const *args)
{
	return start_printing_to(-1, socket, args);
}

/* Whether it has written @text by now. */
static inline bool has_said(const struct running *running, const char *text)
{
	char *out = read_all(running->out, NULL);
	bool has = strstr(out, text);

	free(out);
	return has;
}

/* Waits until it ends. */
static inline struct result finish(const struct running *running)
{
	struct result r;
	int status;

	must(waitpid(running->pid, &status, 0) == running->pid);
	process_say_if_crashed("the command line", status);
	r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
	r.out = read_back(running->out);
	r.err = read_back(running->err);
	return r;
}

static inline struct result run_at(const char *socket, const char *const *args)
{
	struct running running = start_at(socket, args);

	return finish(&running);
}

#define start(d, ...) start_at((d)->socket, (const char *const[]){ __VA_ARGS__, NULL })
#define run(d, ...) run_at((d)->socket, (const char *const[]){ __VA_ARGS__, NULL })

/* Fails the test, and shows the program's output, unless it ended with that exit code. */
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
