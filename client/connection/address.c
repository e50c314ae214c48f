/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses: chooses a socket, connects to it, and decides whether to trust the daemon there.
 * Whatever the path, the connection itself tells which user's daemon listens (see Trust below). The
 * checks of directories serve another purpose: no daemon is started in a directory that other users
 * could rearrange under it.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <tensorlease/tensorlease.h>
#include <unistd.h>

#include "client/connection/address.h"
#include "client/connection/process.h"
#include "client/error.h"
#include "tensor/name.h"
#include "util/address.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/path.h"

#define US_PER_SEC (NS_PER_SEC / NS_PER_US)

/* ---- Choosing a socket ---- */

/* Makes the path absolute, so that later connections go to the same socket although the program has
 * changed its directory. A path that would become too long stays as it is. */
static void make_absolute(struct address *out)
{
	char directory[PATH_MAX], path[PATH_MAX + ADDRESS_PATH_MAX];
	int n;

	if (*out->path == '/' || !getcwd(directory, sizeof(directory)) || *directory != '/')
		return;
	n = snprintf(path, sizeof(path), "%s/%s", directory[1] ? directory : "", out->path);
	if ((size_t)n < sizeof(out->path))
		memcpy(out->path, path, (size_t)n + 1);
}

static int put_path(struct address *out, const char *directory, const char *name)
{
	int n = snprintf(out->path, sizeof(out->path), "%s%s", directory, name);

	if (n < 0 || (size_t)n >= sizeof(out->path))
		return tl_fail(-EINVAL,
			       "'%s...' is longer than the %zu bytes that a socket's path may have",
			       out->path, sizeof(out->path) - 1);
	make_absolute(out);
	return 0;
}

static int put_default_path(struct address *out)
{
	char directory[PATH_MAX];

	if (path_may_exist(ADDRESS_SYSTEM_SOCKET)) /* connect() fails if we may not use it */
		return put_path(out, ADDRESS_SYSTEM_SOCKET, "");
	address_user_directory(directory, sizeof(directory), secure_getenv("XDG_RUNTIME_DIR"));
	return put_path(out, directory, "/socket");
}

static int put_namespace(struct address *out, const char *name, size_t len)
{
	const char *why;

	if (len && tensor_namespace_check(name, len, &why))
		return tl_fail(-EINVAL, "'%.*s': %s", (int)(len < 80 ? len : 80), name, why);
	memcpy(out->name_space, name, len);
	out->name_space[len] = '\0';
	return 0;
}

/* An @address without a path means the socket that is used without any address. */
static int put_socket(struct address *out, const char *address)
{
	const char *path = address_path(address);

	if (!path)
		path = address_path(secure_getenv("TENSORLEASE_SOCKET"));
	return path ? put_path(out, path, "") : put_default_path(out);
}

/* Takes tensorlease://NAMESPACE/PATH apart. NAMESPACE may be empty, which names none. */
static int put_url(struct address *out, const char *url)
{
	const char *name = url + strlen(ADDRESS_SCHEME);
	int r = put_namespace(out, name, strcspn(name, "/"));

	return r ? r : put_socket(out, url);
}

int address_find(struct address *out, const char *asked, const char *name_space)
{
	const char *address = asked ? asked : secure_getenv("TENSORLEASE_SOCKET");
	const char *from_env = secure_getenv("TENSORLEASE_NAMESPACE");
	int r;

	if (address && !address_is_url(address) && strstr(address, "://"))
		return tl_fail(-EINVAL,
			       "'%.80s' is no address: that is the path of a socket, or "
			       "tensorlease://NAMESPACE/PATH",
			       address);

	if (asked && !*asked)
		return tl_fail(-EINVAL, "options->address is empty");
	out->name_space[0] = '\0';
	if (address && address_is_url(address))
		r = put_url(out, address);
	else
		r = put_socket(out, address);
	if (!r && *out->name_space && name_space && strcmp(name_space, out->name_space) != 0)
		r = tl_fail(-EINVAL, "the address %s names another namespace than '%s'", address,
			    name_space);
	if (!r && !*out->name_space && (name_space || from_env))
		r = put_namespace(out, name_space ? name_space : from_env,
				  strlen(name_space ? name_space : from_env));
	return r;
}

/*
 * The private directories are those that address_find() chooses. The directory of a path that the
 * caller gave is the caller's business.
 */
bool address_is_private(const char *address, char *directory, size_t size)
{
	const char *slash = strrchr(address, '/');
	char expected[PATH_MAX];

	if (!slash || strcmp(slash, "/socket") != 0 || (size_t)(slash - address) >= size)
		return false;
	memcpy(directory, address, (size_t)(slash - address));
	directory[slash - address] = '\0';
	snprintf(expected, sizeof(expected), "/tmp/tensorlease-%u", (unsigned)address_uid());
	if (!strcmp(directory, expected))
		return true;
	address_user_directory(expected, sizeof(expected), secure_getenv("XDG_RUNTIME_DIR"));
	return !strcmp(directory, expected);
}

/* Fails with -EACCES: the directory that should be ours belongs to user @owner. */
static int directory_in_the_way(const char *directory, uid_t owner)
{
	return tl_fail(-EACCES,
		       "%s is in the way: it belongs to user %u, not to this one (%u); have that "
		       "user or root remove it, or name another socket in $TENSORLEASE_SOCKET",
		       directory, (unsigned)owner, (unsigned)address_uid());
}

int address_check_directory(const char *directory)
{
	struct stat st;
	uid_t owner;

	if (lstat(directory, &st) || address_owner(directory, AT_SYMLINK_NOFOLLOW, &owner))
		return tl_fail(-errno, "%s: %m", directory);
	if (owner != address_uid())
		return directory_in_the_way(directory, owner);
	if (!S_ISDIR(st.st_mode))
		return tl_fail(-EACCES, "%s is not a directory: no daemon can be started in it",
			       directory);
	if ((st.st_mode & 0777) != 0700)
		return tl_fail(-EACCES, "%s has mode %04o, not 0700: chmod 700 %s", directory,
			       (unsigned)st.st_mode & 0777, directory);
	return 0;
}

/* ---- Connecting ---- */

/* Fails with -EACCES. The text tells whether the socket's mode and group, or a directory on the
 * way, keep us out. */
static int permission_failure(const char *address)
{
	char buffer[1024], number[16], directory[PATH_MAX];
	struct group entry, *group = NULL;
	struct stat st;
	uid_t owner;
	int r;

	if (address_is_private(address, directory, sizeof(directory)) &&
	    !address_owner(directory, AT_SYMLINK_NOFOLLOW, &owner) && owner != address_uid())
		return directory_in_the_way(directory, owner);
	if (stat(address, &st))
		return tl_fail(-EACCES, "the socket %s is not for this user: %m", address);
	if (!(st.st_mode & S_IWGRP) || st.st_gid == 0) /* do not advise to join root's group */
		return tl_fail(-EACCES, "the socket %s is for user %u only: its mode is %04o",
			       address, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
	getgrgid_r(st.st_gid, &entry, buffer, sizeof(buffer), &group);
	snprintf(number, sizeof(number), "%u", (unsigned)st.st_gid);
	r = tl_fail(-EACCES,
		    "the socket %s is for members of the group %s: join it (usermod -aG) and log "
		    "in again",
		    address, group ? group->gr_name : number);
	tl_fail_because(TL_CAUSE_GROUP, st.st_gid);
	return r;
}

/* True if systemd runs here and knows the service. */
static bool has_service(void)
{
	static const char *const units[] = { "/etc/systemd/system/tensorleased.socket",
					     "/run/systemd/system/tensorleased.socket",
					     "/usr/local/lib/systemd/system/tensorleased.socket",
					     "/usr/lib/systemd/system/tensorleased.socket" };

	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
		if (path_may_exist(units[i]))
			return path_may_exist("/run/systemd/system");
	return false;
}

/* Returns the command that starts a daemon at @address, perhaps in @command. A default address gets
 * no --socket, with which the daemon would not make the directory. */
static const char *start_command(const char *address, char *command, size_t size)
{
	char directory[PATH_MAX];

	if (address_is_service(address))
		return has_service() ? "systemctl start tensorleased.socket" : "tensorleased";
	if (address_is_private(address, directory, sizeof(directory)))
		return "tensorleased";
	snprintf(command, size, "tensorleased --socket %s", address);
	return command;
}

static int connect_failure(int r, const char *address)
{
	const char *as_root = address_is_service(address) && address_uid() ? ", as root," : "";
	char command[PATH_MAX + 32];
	struct stat st;

	if (r == -ECONNREFUSED && !stat(address, &st) && !S_ISSOCK(st.st_mode))
		return tl_fail(r, "no daemon listens at %s, which is not a socket", address);
	switch (r) {
	case -ENOENT:
		return tl_fail(r, "no daemon: there is no socket %s; `%s`%s starts one", address,
			       start_command(address, command, sizeof(command)), as_root);
	case -ECONNREFUSED:
		return tl_fail(r, "no daemon listens at %s; `%s`%s starts one", address,
			       start_command(address, command, sizeof(command)), as_root);
	case -ETIMEDOUT:
		return tl_fail(r, "the daemon at %s did not take the connection in time", address);
	case -EPROTOTYPE:
		return tl_fail(r, "no daemon listens at %s, but another program", address);
	case -EACCES:
	case -EPERM:
		return permission_failure(address);
	default:
		return tl_fail(r, "connecting to %s: %m", address);
	}
}

/* Limits how long connect() waits while the daemon's backlog is full. A limit of 0 would mean none,
 * so 1 us is added. */
static int limit_connect(int socket, int64_t deadline)
{
	int64_t us = deadline_left_ns(deadline) / NS_PER_US + 1;
	struct timeval tv = { .tv_sec = us / US_PER_SEC, .tv_usec = us % US_PER_SEC };

	if (deadline == DEADLINE_NEVER ||
	    !setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)))
		return 0;
	return -errno;
}

int address_connect(const char *address, int64_t deadline, int *socket_out)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	int r, limited;

	*socket_out = fd_raise(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	if (*socket_out < 0)
		return tl_fail(-errno, "making a socket: %m");
	memcpy(sun.sun_path, address, strlen(address) + 1);
	do {
		limited = limit_connect(*socket_out, deadline);
		r = limited;
		if (!r && connect(*socket_out, (struct sockaddr *)&sun, sizeof(sun)))
			r = -errno;
	} while (r == -EINTR && !deadline_passed(deadline));
	if (r) {
		int unconnected = *socket_out;

		*socket_out = -1;
		fd_close(unconnected);
		if (limited)
			return tl_fail(limited,
				       "limiting the time to connect to %s (setsockopt): %m",
				       address);
		return connect_failure(r == -EAGAIN || r == -EINTR ? -ETIMEDOUT : r, address);
	}
	return trust_peer(*socket_out, address);
}

/*
 * Trust. A daemon can read everything that its clients publish, and they compute with whatever it
 * hands them. So a client talks only to a daemon whose user has that power over it anyway. A path
 * does not tell whose daemon it leads to, since others may rename entries of /tmp between a check
 * and connect(). The connection does tell: the kernel records the user who called listen().
 */

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

/* True if @uid may be the system's service. The socket is root's if systemd made it, and belongs to
 * the service's user if the service made it. No user is trusted as the service if there is no such
 * account, or if a person's account has that name. */
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
