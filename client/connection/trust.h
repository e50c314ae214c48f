/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which daemons we talk to, and which program we start as one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * Returns 0 if the listener at the other end of the connected @socket runs as this user, as root or
 * as the system's service, or is named in $TENSORLEASE_TRUST_UID. Otherwise fails with -EACCES and
 * a text that names its user; -EINVAL means that the variable is malformed.
 */
int trust_peer(int socket, const char *address);

/*
 * Returns true if only root and this user can change the program at @path or make the path lead to
 * another one. @path comes from realpath(). Otherwise @why names the part of it that others could
 * change, and how.
 */
bool trust_program(const char *path, char *why, size_t size);
