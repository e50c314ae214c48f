/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the daemon's socket, connects to it, and starts a daemon for this user. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/limits.h"

enum { ADDRESS_PATH_MAX = 108 };

struct address {
	char path[ADDRESS_PATH_MAX];		   /* of the socket */
	char name_space[TENSOR_NAMESPACE_MAX + 1]; /* empty: the default one */
};

/* Finds the address as tl_connect() documents it for @asked and @name_space, either of which may be
 * NULL. */
int address_find(struct address *out, const char *asked, const char *name_space);

/* Connects to a daemon that may be trusted. *@socket is set even on failure, and the caller closes
 * it: -1 if there is no connection, a socket if the daemon is not trusted. */
int address_connect(const char *address, int64_t deadline, int *socket);

/* Starts tensorleased at @address and waits until it or another daemon listens there. If one that
 * this process started there before is still starting, waits for that. */
int address_autostart(const char *address, int64_t deadline);
/* Reaps the processes that were started and not waited for to their end. */
void address_reap(void);
