/* SPDX-License-Identifier: Apache-2.0 */
/* Starting, running and ending the server. */
#pragma once

#include "daemon/serve/server.h"

struct server_options {
	int listen_fd;		     /* listening, non-blocking; the server closes it */
	struct keeper_link *keeper;  /* keeps descriptors for the next daemon; outlives us */
	bool adopt;		     /* take over what the last daemon left */
	struct common_limits common; /* the server sets its max_clients */
	const struct namespace_config *namespaces; /* the first is the default one */
	unsigned count;
	struct namespace_config users; /* template of the users' own; mode 0: there is none */
	int64_t hello_ns;	       /* how long a connection may take to be READY */
	/* True if another daemon can serve with the present options, and take over the namespaces
	 * @all unless that is NULL. Else writes the reason into @why. */
	bool (*may_leave)(void *context, const struct namespaces *all, char why[SERVER_WHY_MAX]);
	/* False if nobody can connect any more: then tensors are no reason to stay. */
	bool (*is_reachable)(void *context);
	void *context;
	int64_t idle_exit_ns; /* end after so long without clients, and without tensors or
				 unreachable; < 0: never */
};

/*
 * The last daemon's instance cannot be taken over, which is logged, and the process must end at
 * once. SERVER_E_STRANGE: another process can start afresh. SERVER_E_LEFT: something is lacking
 * that may come back, or another program can take the instance over; nothing may be cleaned up.
 */
enum { SERVER_E_STRANGE = 1, SERVER_E_LEFT };

/* Blocks or unblocks SIGTERM and SIGINT; server_run() unblocks them when it handles them. */
void server_mask_ends(int how);
/* @server must not move afterwards. SERVER_E_STRANGE, SERVER_E_LEFT; -ENOMEM, -ENOSPC, -EMFILE, ...
 * On failure the listening socket is closed too. */
int server_init(struct server *server, uint64_t instance, const struct server_options *options);
/*
 * Returns after SIGTERM, SIGINT or idleness, when every client has been dropped. Returns
 * SERVER_E_LEFT, between two messages, when another daemon is to take over: then nothing may be
 * cleaned up.
 */
int server_run(struct server *server);
/* True if clients were connected when the server was asked to end. */
bool server_had_clients(const struct server *server);
/* Removes the rest of the instance. */
void server_deinit(struct server *server);

/*
 * Does one round of the loop: serves turns for a while, acts on changes (waiting creates, ended
 * segments, notices, timers, SYNC), and then asks for events. With @wait it waits for events if
 * there is nothing else to do. False: there was nothing to do and nothing happened.
 */
bool server_step(struct server *server, bool wait);
