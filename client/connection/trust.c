/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trust. A daemon can read everything that its clients publish, and they compute with whatever it
 * hands them. So a client talks only to a daemon whose user has that power over it anyway. A path
 * does not tell whose daemon it leads to, since others may rename entries of /tmp between a check
 * and connect(). The connection does tell: the kernel records the user who called listen().
 */
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <tensorlease/tensorlease.h>

#include "client/error.h"
#include "client/connection/trust.h"
#include "util/address.h"

/* The account that packaging/sysusers.d creates. */
#define SERVICE_USER "tensorlease"

enum {
	SERVICE_UID_MAX = 999, /* the highest uid of systemd-sysusers; people's are higher */
	OVERFLOW_UID = 65534,  /* stands for every user that this user namespace does not know */
	PASSWD_SIZE = 4096,
};

static bool is_us(uid_t uid)
{
	return uid == address_uid() && uid != OVERFLOW_UID;
}

/* ---- Daemons ---- */

/* The socket is root's if systemd made it, and the service's if that made it itself. No user is
 * trusted as the service if there is no such account, or if a person's account has that name. */
static bool is_service(uid_t uid)
{
	char buffer[PASSWD_SIZE];
	struct passwd entry, *found = NULL;

	return uid <= SERVICE_UID_MAX &&
	       !getpwnam_r(SERVICE_USER, &entry, buffer, sizeof(buffer), &found) && found &&
	       found->pw_uid == uid;
}

/* Returns 1 if @uid is among the numbers of @list, 0 if not, or -EINVAL. */
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
	const char *name = "unknown here";
	int r;

	if (uid == OVERFLOW_UID)
		name = "unknown to this user namespace";
	else if (!getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) && found)
		name = found->pw_name;
	r = tl_fail(-EACCES,
		    "the daemon at %s is run by user %u (%s), who is neither us (%u) nor root nor "
		    "the system's service, and could read and forge all tensors; if that is as it "
		    "should be, set TENSORLEASE_TRUST_UID=%u",
		    address, (unsigned)uid, name, (unsigned)address_uid(), (unsigned)uid);
	tl_fail_because(TL_CAUSE_UNTRUSTED, uid);
	return r;
}

int trust_peer(int socket, const char *address)
{
	const char *list = secure_getenv("TENSORLEASE_TRUST_UID");
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int r;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return tl_fail(-errno, "asking who listens at %s: %m", address);
	if (peer.uid == 0 || is_us(peer.uid) || is_service(peer.uid))
		return 0;
	r = list && *list ? is_listed(list, peer.uid) : 0;
	if (r < 0)
		return r;
	return r ? 0 : refuse_peer(peer.uid, address);
}

/* ---- Programs ---- */

/* Many systems give each user a group of the same name that may write the user's files. Such a
 * group is harmless as long as it has no other members. */
static bool is_own_group(gid_t gid)
{
	char user_buffer[PASSWD_SIZE], group_buffer[PASSWD_SIZE];
	struct passwd user_entry, *user = NULL;
	struct group group_entry, *group = NULL;

	if (getpwuid_r(geteuid(), &user_entry, user_buffer, sizeof(user_buffer), &user) || !user ||
	    getgrgid_r(gid, &group_entry, group_buffer, sizeof(group_buffer), &group) || !group)
		return false;
	return user->pw_gid == gid && !strcmp(user->pw_name, group->gr_name) && !*group->gr_mem;
}

/* Checks one part of a program's path: the program, or a directory. @is_parent marks the directory
 * that the program itself lies in. */
static bool trust_part(const char *path, bool is_program, bool is_parent, char *why, size_t size)
{
	struct stat st;
	bool written;

	if (lstat(path, &st) || (is_program ? !S_ISREG(st.st_mode) : !S_ISDIR(st.st_mode))) {
		snprintf(why, size, "%s changes while it is looked at", path);
		return false;
	}
	if (st.st_uid != 0 && !is_us(st.st_uid)) {
		snprintf(why, size, "%s belongs to user %u, who is neither us (%u) nor root", path,
			 (unsigned)st.st_uid, (unsigned)geteuid());
		return false;
	}
	written = st.st_mode & S_IWOTH || (st.st_mode & S_IWGRP && !is_own_group(st.st_gid));
	/* In a sticky directory others cannot rename entries that are root's or ours. They can link
	 * files there that are not theirs, so the program itself must not lie in one. */
	if (!written || (!is_program && !is_parent && st.st_mode & S_ISVTX))
		return true;
	snprintf(why, size, "others can write %s: it has mode %04o and group %u", path,
		 (unsigned)st.st_mode & 07777, (unsigned)st.st_gid);
	return false;
}

/*
 * Checks the parts from the root on. Others cannot replace a part that has passed, neither while
 * the next one is checked nor when the program is started by that path.
 */
bool trust_program(const char *path, char *why, size_t size)
{
	const char *last = strrchr(path, '/');
	char part[PATH_MAX];

	for (const char *end = path; end <= last; end = end + 1 + strcspn(end + 1, "/")) {
		size_t length = end == path ? 1 : (size_t)(end - path);

		snprintf(part, sizeof(part), "%.*s", (int)length, path);
		if (!trust_part(part, false, end == last, why, size))
			return false;
	}
	return trust_part(path, true, false, why, size);
}
