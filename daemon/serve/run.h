/* SPDX-License-Identifier: Apache-2.0 */
/* Starting, running and ending the server. */
#pragma once

#include "daemon/serve/server.h"

struct server_options {
	int listen_fd;		     /* listening, non-blocking; the server closes it */
	struct keep *keep;	     /* who keeps descriptors for the next daemon; outlives us */
	bool adopt;		     /* what the last daemon left is taken over */
	struct shared_limits shared; /* the server sets its max_tensors and max_clients */
	const struct namespace_config *namespaces; /* the first is the default one */
	unsigned count;
	struct namespace_config users; /* of each user's own; its mode is 0 if there are none */
	int64_t hello_ns;	       /* how long a connection may take to say who it is */
	/* Are the options by now such that another daemon can serve with them, and, if @adopting,
	 * takes over what we have? Says why not. */
	bool (*may_leave)(void *context, bool adopting, char why[SERVER_WHY_MAX]);
	void *context;
	int64_t idle_exit_ns; /* end after so long without clients and tensors; < 0: never */
};

/*
 * The last daemon's instance cannot be taken over, which is logged: the process must end at once,
 * and another one start afresh.
 */
enum { SERVER_E_STRANGE = 1, SERVER_E_LEFT };

/* @server must not move afterwards. SERVER_E_STRANGE; -ENOMEM, -ENOSPC, -EMFILE, ... On failure the
 * listening socket is closed too. */
int server_init(struct server *server, uint64_t instance, const struct server_options *options);
/*
 * Returns after SIGTERM, SIGINT or idleness, when every client has been dropped; or, with
 * SERVER_E_LEFT, between two messages, when another daemon is to take over: nothing may be cleaned
 * up then.
 */
int server_run(struct server *server);
/* Were clients connected when it was asked to end? */
bool server_had_clients(const struct server *server);
/* Removes all that is left of the instance. */
void server_deinit(struct server *server);

/*
 * Once around the loop: serves turns for a while, acts on what changed (waiting creates, doomed
 * segments, notices, timers, SETTLE), and then asks what has happened. With @wait it waits for that
 * if there is nothing else to do. False: there was nothing to do and nothing happened.
 */
bool server_step(struct server *server, bool wait);
