/* SPDX-License-Identifier: Apache-2.0 */
/* Whose daemon we talk to, and which program we start as one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * Is whoever listens at the other end of the connected @socket ours, root, the user of the system's
 * service, or named in $TENSORLEASE_TRUST_UID? Else -EACCES, and the failure's text says who it is.
 */
int trust_peer(int socket, const char *address);

/*
 * Can nobody but root and us change what @path means or what that program is? @path is absolute and
 * without symbolic links, as of realpath(). Else false, and @why says of which part of it and of
 * whom that is not so.
 */
bool trust_program(const char *path, char *why, size_t size);
