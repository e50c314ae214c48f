/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of daemons. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ADDRESS_SCHEME "tensorlease://"
#define ADDRESS_SYSTEM_DIRECTORY "/run/tensorlease"
#define ADDRESS_SYSTEM_SOCKET ADDRESS_SYSTEM_DIRECTORY "/socket"

/* In the environment of a daemon that a client starts: it keeps none of the client's bindings to
 * processors and memory nodes. */
#define ADDRESS_AUTOSTARTED "TENSORLEASE_AUTOSTARTED"

static inline bool address_is_url(const char *text)
{
	return !strncmp(text, ADDRESS_SCHEME, strlen(ADDRESS_SCHEME));
}

/* Returns the path that an address has, or NULL. */
static inline const char *address_path(const char *address)
{
	if (address && address_is_url(address)) {
		address = strchr(address + strlen(ADDRESS_SCHEME), '/');
		return address && address[1] ? address : NULL;
	}
	return address && *address ? address : NULL;
}

/* No program starts a daemon in the place of the service: whoever has stopped that wants none. */
static inline bool address_is_service(const char *path)
{
	return !strcmp(path, ADDRESS_SYSTEM_SOCKET);
}

/* Our user, as the kernel and a daemon know it: fakeroot(1) has geteuid() say 0. */
static inline uid_t address_uid(void)
{
	return (uid_t)syscall(SYS_geteuid);
}

/* The owner of what is at @path, which fakeroot(1) cannot disguise. @flags: AT_SYMLINK_NOFOLLOW or
 * 0. Returns 0, or -1 with errno. */
static inline int address_owner(const char *path, int flags, uid_t *uid)
{
	struct statx x;
	struct stat st;
	int r = (int)syscall(SYS_statx, AT_FDCWD, path, flags, STATX_UID, &x);

	if (r && (errno == ENOSYS || errno == EPERM)) { /* some sandboxes do not know it */
		r = fstatat(AT_FDCWD, path, &st, flags);
		x.stx_uid = st.st_uid;
	}
	if (!r)
		*uid = x.stx_uid;
	return r;
}

/* Whether $XDG_RUNTIME_DIR is another user's, as after su(1). What is made in there would be in
 * that user's way. */
static inline bool address_is_others(const char *runtime)
{
	uid_t owner;

	return !address_owner(runtime, 0, &owner) && owner != address_uid();
}

/*
 * Writes the directory of the socket of our user's own daemon. @runtime is $XDG_RUNTIME_DIR, or
 * NULL: then the daemon of a login session is found by programs outside it, such as cron jobs. The
 * socket itself is looked at, since ProtectHome= of a service hides it.
 */
static inline void address_user_directory(char *path, size_t size, const char *runtime)
{
	const unsigned uid = address_uid();
	char socket[64];
	struct stat st;

	snprintf(socket, sizeof(socket), "/run/user/%u/tensorlease/socket", uid);
	if (runtime && *runtime && !address_is_others(runtime))
		snprintf(path, size, "%s/tensorlease", runtime);
	else if (!stat(socket, &st))
		snprintf(path, size, "/run/user/%u/tensorlease", uid);
	else
		snprintf(path, size, "/tmp/tensorlease-%u", uid);
}
