/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a parent that starts the daemon proper, keeps descriptors for it, and starts another
 * one when it dies. What dies with a process is its descriptors, so the next daemon finds what
 * clients, kernel and service manager had of the last one unchanged. The keeper talks to nobody but
 * its child, knows nothing of what it keeps but tags, and waits for nothing, so that it has no
 * reason to die.
 */
#pragma once

#include "daemon/keeper/table.h"

enum {
	KEEPER_DEATHS_MAX = 5, /* so many ... */
	KEEPER_DEATHS_S = 10,  /* ... within so long are too many */
};

struct keeper_options {
	char **argv;	  /* of the daemon, too */
	const char *exe;  /* NULL: the program that runs */
	int activated_fd; /* of a service, or -1; the keeper closes it */
	int detached;	  /* the daemon is to go into the background when it is ready */
	void (*notified)(void *context, const char *text); /* by the daemon; READY=1 among it */
	void *context;
};

/*
 * Returns the exit status when the daemon has ended by itself, or has died before it was ready, or
 * too often. SIGTERM and SIGINT are passed on to it. SIGUSR2 ends it, and another one takes over,
 * of the program that has the path by then; if that one ends before it serves, the former program
 * is used. So does SIGHUP, unless the next daemon could not take over.
 */
int keeper_run(const struct keeper_options *options);
