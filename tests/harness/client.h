/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask a client for again and again. */
#pragma once

#include <signal.h>

#include "tests/harness/harness.h"

/* Writes a daemon's configuration. */
static inline void config_write(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	must(file && fputs(text, file) >= 0);
	must_be(fclose(file), 0);
}

/* A tensor of @shape[0] bytes. */
static inline DLTensor bytes_tensor(const void *data, const int64_t *shape)
{
	return (DLTensor){ .data = (void *)(uintptr_t)data,
			   .device = { kDLCPU, 0 },
			   .ndim = 1,
			   .dtype = { kDLUInt, 8, 1 },
			   .shape = (int64_t *)(uintptr_t)shape };
}

static inline struct tl_status client_status(tl_client *client)
{
	struct tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status;
}

/* Connects under a label. */
static inline tl_client *connect_as(const struct test_daemon *d, const char *label)
{
	const tl_connect_options o = { .size = sizeof(o), .address = d->socket, .label = label };
	tl_client *client;

	must_be(tl_connect(&o, &client), 0);
	return client;
}

/* The daemon that serves the client, and no keeper. */
static inline pid_t daemon_of(tl_client *c)
{
	return (pid_t)client_status(c).daemon_pid;
}

/* Starts a daemon of this user at the socket, unless there is one. */
static inline pid_t daemon_autostart(const char *socket)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = socket,
				 .timeout_ns = WAIT_S * SECOND,
				 .flags = TL_CONNECT_AUTOSTART };
	tl_client *client;
	pid_t pid;

	must_be(tl_connect(&o, &client), 0);
	pid = daemon_of(client);
	tl_close(client);
	return pid;
}

/* Kills the daemon proper and waits until another one serves @c. */
static inline void daemon_kill(tl_client *c)
{
	pid_t pid = daemon_of(c);

	must_be(kill(pid, SIGKILL), 0);
	eventually(daemon_of(c) != pid);
}

/* What this user has of a share, one of TL_SHARE_*. */
static inline uint64_t share_used(tl_client *client, unsigned share)
{
	tl_user_info info = { .size = sizeof(info) };

	must_be(tl_get_user(client, geteuid(), &info), 0);
	return info.shares[share].used;
}

/* All numbers, of a daemon that clients can reach; see td_status(). */
static inline struct tl_status td_full_status(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);
	struct tl_status status = client_status(client);

	tl_close(client);
	return status;
}

static inline bool client_sees(tl_client *client, const char *name)
{
	tl_info info = { .size = sizeof(info) };
	int r = tl_stat(client, name, &info);

	must(r == 0 || r == -ENOENT);
	return r == 0;
}
