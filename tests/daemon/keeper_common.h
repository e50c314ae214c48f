/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons with keepers, and what is published there. */
#pragma once

#include <signal.h>
#include <string.h>

#include "tests/harness/client.h"

static const char *const with_keeper[] = { "--keeper", "yes", NULL };

static inline struct test_daemon start(const char *const *extra)
{
	return td_start(.extra = extra, .expect_ready = true);
}

/* The pid of the daemon proper, or 0 if none serves. */
static inline pid_t proper(const struct test_daemon *d)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	struct tl_status status = { .size = sizeof(status) };
	tl_client *c;
	pid_t pid = 0;

	if (tl_connect(&o, &c))
		return 0;
	if (!tl_get_status(c, &status))
		pid = (pid_t)status.daemon_pid;
	tl_close(c);
	return pid;
}

static inline pid_t kill_and_wait(struct test_daemon *d, pid_t pid)
{
	pid_t next = 0;

	must(pid > 0 && pid != d->keeper);
	must_be(kill(pid, SIGKILL), 0);
	eventually((next = proper(d)) && next != pid);
	must_be(td_check(d, false), 0);
	return next;
}

/* Kills the daemon proper, and returns its successor when that serves. */
static inline pid_t kill_proper(struct test_daemon *d)
{
	return kill_and_wait(d, proper(d));
}

/* What another daemon on its socket exits with. */
static inline int exit_status_beside(const struct test_daemon *d)
{
	struct test_daemon other = td_start(.socket = d->socket, .extra = with_keeper,
					    .expect_exit = true);
	int status = td_exit_status(&other);

	must(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* A client in that namespace. */
static inline tl_client *enter(const struct test_daemon *d, const char *name_space)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->socket,
				 .namespace_name = name_space };
	tl_client *c;

	must_be(tl_connect(&o, &c), 0);
	return c;
}

static inline int put_value(tl_client *c, const char *name, uint8_t value, uint64_t *version)
{
	static uint8_t bytes[200000];
	const int64_t n = sizeof(bytes);
	DLTensor t = bytes_tensor(bytes, &n);

	memset(bytes, value, sizeof(bytes));
	return tl_put(c, name, &t, NULL, version);
}

static inline bool log_has(const struct test_daemon *d, const char *text)
{
	char *log = td_log(d);
	bool has = strstr(log, text);

	free(log);
	return has;
}
