/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the daemon's socket, connects to it, starts a daemon for this user, and decides which
 * daemons and programs to trust. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"
#include "tensor/limits.h"

enum { ADDRESS_PATH_MAX = 108 };

/* Where a client connects, and what it calls itself. */
struct address {
	char path[ADDRESS_PATH_MAX];		   /* of the socket */
	char name_space[TENSOR_NAMESPACE_MAX + 1]; /* empty: the default one */
	char label[WIRE_LABEL_MAX];		   /* this client's name, as the daemon shows it */
};

/* Finds the path and the namespace as tl_connect() documents it for @asked and @name_space, either
 * of which may be NULL. */
int address_find(struct address *out, const char *asked, const char *name_space);

/* Connects to a daemon that may be trusted. *@socket is set even on failure, and the caller closes
 * it: -1 if there is no connection, a socket if the daemon is not trusted. */
int address_connect(const char *address, int64_t deadline, int *socket);

/* True if the socket lies in one of the private directories that address_find() chooses. Then
 * @directory gets that directory. */
bool address_is_private(const char *address, char *directory, size_t size);
/* Fails if other users could rearrange @directory, which should be our own. */
int address_check_directory(const char *directory);

/* Starts tensorleased at @address and waits until it or another daemon listens there. If a daemon
 * that this process started there is still starting, waits for that one instead. */
int address_autostart(const char *address, int64_t deadline);
/* Reaps ended processes of address_autostart() that no call has waited for to the end. */
void address_reap(void);

/*
 * Returns 0 if the listener at the other end of the connected @socket runs as this user, as root or
 * as the system's service, or if its user is listed in $TENSORLEASE_TRUST_UID. Otherwise fails with
 * -EACCES and a text that names the listener's user; -EINVAL means that the variable is malformed.
 */
int trust_peer(int socket, const char *address);

/*
 * Returns true if only root and this user can change the program at @path or make the path lead to
 * another one. @path comes from realpath(). Otherwise @why names the part of it that others could
 * change, and how.
 */
bool trust_program(const char *path, char *why, size_t size);
