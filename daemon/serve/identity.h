/* SPDX-License-Identifier: Apache-2.0 */
/* Who is at the other end of a connection, by what the kernel noted when it was made. */
#pragma once

#include <sys/types.h>

#include "daemon/state/client.h"

/* The kernel shows this number for a user whom this user namespace does not know. */
enum { IDENTITY_OVERFLOW_UID = 65534 };

/* Does the connection belong to such an unknown user? Any user may look like that. */
bool identity_is_nobody(int fd_peek);
/* Its uid, gid and pid, without groups. 0, or a negative errno. */
int identity_of(int fd_peek, struct client_identity *who);
/* Its supplementary groups; *@groups is the caller's, and NULL if there are none. -ENOMEM. */
int identity_groups(int fd_peek, gid_t **groups, unsigned *count);
