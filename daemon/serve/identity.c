/* SPDX-License-Identifier: Apache-2.0 */
/* The user at the other end of a connection; see identity.h. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "daemon/serve/identity.h"

static int credentials(int fd_peek, struct ucred *cred)
{
	socklen_t length = sizeof(*cred);

	return getsockopt(fd_peek, SOL_SOCKET, SO_PEERCRED, cred, &length) ? -errno : 0;
}

bool identity_is_nobody(int fd_peek)
{
	struct ucred cred;

	return !credentials(fd_peek, &cred) && cred.uid == IDENTITY_OVERFLOW_UID;
}

int identity_groups(int fd_peek, gid_t **groups, unsigned *count)
{
	socklen_t length = 0;

	*groups = NULL;
	*count = 0;
	if (!getsockopt(fd_peek, SOL_SOCKET, SO_PEERGROUPS, NULL, &length) || errno != ERANGE)
		return 0; /* it has none */
	*groups = malloc(length);
	if (!*groups)
		return -ENOMEM;
	if (getsockopt(fd_peek, SOL_SOCKET, SO_PEERGROUPS, *groups, &length))
		return -errno;
	*count = (unsigned)(length / sizeof(gid_t));
	return 0;
}

int identity_of(int fd_peek, struct client_identity *who)
{
	struct ucred cred;
	int r = credentials(fd_peek, &cred);

	if (r)
		return r;
	*who = (struct client_identity){ .uid = cred.uid,
					 .gid = cred.gid,
					 .pid = (uint32_t)cred.pid };
	return 0;
}
