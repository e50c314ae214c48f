/* SPDX-License-Identifier: Apache-2.0 */
/* The user at the other end of a connection, as the kernel noted when it was made. */
#pragma once

#include <sys/types.h>

#include "daemon/state/client.h"

/* The kernel shows this number for users that this user namespace does not know. */
enum { IDENTITY_OVERFLOW_UID = 65534 };

/* True if the connection belongs to such a user. Any user may look like that. */
bool identity_is_nobody(int fd_peek);
/* The uid, gid and pid of the other end, without groups. Returns 0, or a negative errno. */
int identity_of(int fd_peek, struct client_identity *who);
/* The supplementary groups of the other end. The caller frees *@groups, which is NULL if there are
 * none. -ENOMEM. */
int identity_groups(int fd_peek, gid_t **groups, unsigned *count);
