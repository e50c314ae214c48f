/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trust. A daemon reads whatever its clients publish, and its clients compute with whatever it hands them. So a client
 * talks only to a daemon whose user could do that to it anyway. A path does not say whose daemon it leads to: between
 * a look at a directory and connect() others may rename what lies in /tmp. The connection does: the kernel notes the
 * user who called listen().
 */
#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <tensorlease/tensorlease.h>

#include "client/error.h"
#include "client/trust.h"

/* Of packaging/sysusers.d. */
#define SERVICE_USER "tensorlease"

enum {
	SERVICE_UID_MAX =
		999,	      /* systemd-sysusers gives no higher one, and people get higher ones */
	OVERFLOW_UID = 65534, /* any user that this user namespace does not know */
	PASSWD_SIZE = 4096,
};

/* ---- Daemons ---- */

/*
 * The service listens as this user where it was not systemd, as root, that made the socket. Where there is no such
 * account, or where somebody was given that name who is no system user, nobody is trusted for it.
 */
static bool is_service(uid_t uid)
{
	char buffer[PASSWD_SIZE];
	struct passwd entry, *found = NULL;

	return uid <= SERVICE_UID_MAX &&
	       !getpwnam_r(SERVICE_USER, &entry, buffer, sizeof(buffer), &found) && found &&
	       found->pw_uid == uid;
}

/* 1: @uid is among the numbers of @list; 0: it is not. */
static int is_listed(const char *list, uid_t uid)
{
	bool is = false;

	for (const char *at = list;; at++) {
		unsigned long long number;
		char *end;

		errno = 0;
		number = strtoull(at, &end, 10);
		if (!isdigit((unsigned char)*at) || errno || number >= (uid_t)-1 ||
		    (*end && *end != ','))
			return tl_fail(-EINVAL,
				       "$TENSORLEASE_TRUST_UID is '%s': it takes numbers of users "
				       "(uids), with a comma between two",
				       list);
		is |= number == uid;
		if (!*end)
			return is;
		at = end;
	}
}

static int refuse_peer(uid_t uid, const char *address)
{
	char buffer[PASSWD_SIZE];
	struct passwd entry, *found = NULL;
	const char *name = "who has no name here";

	if (uid == OVERFLOW_UID)
		name = "unknown to this user namespace";
	else if (!getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) && found)
		name = found->pw_name;
	return tl_fail(
		-EACCES,
		"the daemon at %s is run by user %u (%s), who is neither us (%u) nor root nor "
		"the system's service, and could read and forge all tensors; if that is as it "
		"should be, set TENSORLEASE_TRUST_UID=%u",
		address, (unsigned)uid, name, (unsigned)geteuid(), (unsigned)uid);
}

int trust_peer(int socket, const char *address)
{
	const char *list = secure_getenv("TENSORLEASE_TRUST_UID");
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int r;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return tl_fail(-errno, "asking who listens at %s: %m", address);
	if (peer.uid == 0 || (peer.uid == geteuid() && peer.uid != OVERFLOW_UID) ||
	    is_service(peer.uid))
		return 0;
	r = list && *list ? is_listed(list, peer.uid) : 0;
	if (r < 0)
		return r;
	return r ? 0 : refuse_peer(peer.uid, address);
}
