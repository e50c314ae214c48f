/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon for one socket. The socket's lock file also names the last instance, so that the next
 * daemon finds and removes the objects that a killed one left in shared memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SOCKET_LOCK_E_SERVED = 1 };

struct socket_lock {
	char socket[108];
	int lock_fd;
	int listen_fd; /* the server closes it */
	uint64_t id;
	uint64_t versions;	 /* no former daemon gave out a higher version; 0: there was none */
	uint64_t versions_since; /* when we knew that: CLOCK_MONOTONIC; 0: not known */
	bool adopted;		 /* taken over from the last daemon */
	int activated;		 /* the socket is the service manager's, and stays when we go */
};

/* Inherited descriptors, or -1. socket_lock_init() takes all of them. */
struct instance_fds {
	int activated;	  /* the socket of a service */
	int lock, listen; /* the last daemon's, from a keeper */
	bool adopt;	  /* take the last daemon's state over, instead of removing it */
	bool must_adopt;  /* fail if that is not possible */
};

/* Locks and binds @socket (NULL: the activated one). Returns SOCKET_LOCK_E_SERVED with the culprit
 * in
 * @why if another daemon, or another program, serves it; else a negative errno with @why. */
int socket_lock_init(struct socket_lock *in, const char *socket, struct instance_fds *fds,
		     char *why, size_t why_size);
/* Notes the highest version that this daemon gave out, before its shared memory is removed. The
 * next daemon begins above it, since clients may be waiting for newer versions. */
void instance_note_versions(struct socket_lock *in);
/*
 * Notes the highest version of the last daemon's state, which cannot be taken over, and removes
 * that. The next daemon may find nothing, since unused objects are removed by others
 * (util/leftovers.h).
 */
void socket_lock_give_up(struct socket_lock *in);
/* False if the socket has been removed, or another daemon has taken its place, so that nobody can
 * connect any more. */
bool socket_lock_is_reachable(const struct socket_lock *in);
/*
 * Removes the socket, unless it is the service manager's, and the lock file, unless it notes a
 * highest version. Another daemon's stay.
 */
void socket_lock_deinit(struct socket_lock *in);
