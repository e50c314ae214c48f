/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One daemon for one socket. The socket's lock file also names the last instance, so that the next
 * daemon finds and removes what a killed one left in shared memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INSTANCE_E_SERVED = 1 };

struct instance {
	char socket[108];
	int lock_fd;
	int listen_fd; /* the server closes it */
	uint64_t id;
	uint64_t versions; /* no former daemon gave out a higher one; 0: there was none */
	bool adopted;	   /* it is the last daemon's */
	int activated;	   /* the socket is the service manager's, and stays when we go */
};

/* Descriptors that are there already, or -1. instance_init() takes all of them. */
struct instance_fds {
	int activated;	  /* the socket of a service */
	int lock, listen; /* the last daemon's, which a keeper has kept */
	bool adopt;	  /* the last daemon's state is to be taken over, not removed */
};

/*
 * Locks and binds @socket (NULL: the activated one). INSTANCE_E_SERVED: another daemon, or another
 * program, serves it; @why says who. A negative errno with @why otherwise.
 */
int instance_init(struct instance *in, const char *socket, struct instance_fds *fds, char *why,
		  size_t why_size);
/*
 * Notes the highest version that this daemon gave out, before its shared memory is removed: the
 * next daemon begins above it, and clients may be waiting for newer versions.
 */
void instance_note_versions(struct instance *in);
/*
 * The last daemon's state cannot be taken over: notes its highest version, and removes it. The next
 * daemon may find nothing, since others remove objects that nobody has open (util/leftovers.h).
 */
void instance_give_up(struct instance *in);
/*
 * Removes the socket, unless it is the service manager's, and the lock file, unless it notes a
 * highest version.
 */
void instance_deinit(struct instance *in);
