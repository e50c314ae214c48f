/* SPDX-License-Identifier: Apache-2.0 */
/* Starting, running and ending the server. */
#pragma once

#include "daemon/serve/server.h"

struct server_options {
	int listen_fd; /* listening, non-blocking; the server closes it */
	unsigned fds;  /* how many descriptors there may be */
	struct state_limits limits;
	int64_t idle_exit_ns; /* end after so long without clients and tensors; < 0: never */
};

/* @server must not move afterwards. -ENOMEM, -ENOSPC, -EMFILE, ... On failure the listening socket
 * is closed too. */
int server_init(struct server *server, uint64_t instance, const struct server_options *options);
/* Returns after SIGTERM, SIGINT or idleness, when every client has been dropped. */
void server_run(struct server *server);
/* Removes all that is left of the instance. */
void server_deinit(struct server *server);

/* Acts on what changed: waiting creates, doomed segments, notices, timers, SETTLE. The loop calls
 * it before it waits. */
void server_settle(struct server *server);
