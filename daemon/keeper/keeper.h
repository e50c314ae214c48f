/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a parent that starts the daemon proper, keeps descriptors for it, and starts another
 * one when it dies. A process that dies loses only its descriptors. So the next daemon finds
 * everything unchanged that clients, kernel and service manager had of the last one. The keeper
 * talks only to its child, knows only the tags of the descriptors, and waits for nothing, so that
 * it has no reason to die.
 */
#pragma once

#include "daemon/keeper/keeper_protocol.h"

enum {
	KEEPER_DEATHS_MAX = 5,	  /* so many deaths ... */
	KEEPER_DEATHS_S = 10,	  /* ... within so long are too many */
	KEEPER_FAILURES_MAX = 15, /* so many failed starts in a row are too many, too */
};

struct keeper_options {
	char **argv;	  /* also the daemon's */
	const char *exe;  /* NULL: what argv[0] leads to, if that is the running program */
	int activated_fd; /* of a service, or -1; the keeper closes it */
	int detached;	  /* the daemon is to go into the background when it is ready */
	int retry_ms;	  /* the first pause after a failed start; 0: the usual one */
	int start_ms;	  /* for a new program to serve; 0: the usual time */
	void (*notified)(void *context, const char *text); /* called for texts of the daemon,
							      READY=1 among them */
	void *context;
};

/*
 * Returns the exit status when the daemon has ended by itself, or the first one has died before it
 * was ready, or daemons have died or failed to start too often. Passes SIGTERM and SIGINT on to the
 * daemon. A daemon starts with both blocked, and unblocks them when it can handle them. If a daemon
 * ends without cleaning up, another one is started that begins afresh and gets SIGTERM at once.
 * SIGUSR2 ends the daemon, and another one takes over, of the program that has the path by then. If
 * that daemon ends before it serves, or does not serve in time, the former program is used. SIGHUP
 * does the same, unless the next daemon could not take over.
 */
int keeper_run(const struct keeper_options *options);
