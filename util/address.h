/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of daemons. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

/* True for the system's socket, unless our user has one there. No program starts a daemon in the
 * place of the service: whoever has stopped that wants none. */
static inline bool address_is_service(const char *path)
{
	struct stat st;

	return !strcmp(path, ADDRESS_SYSTEM_SOCKET) &&
	       (lstat(path, &st) || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid());
}

/*
 * Writes the directory of the socket of our user's own daemon. @runtime is $XDG_RUNTIME_DIR, or
 * NULL: then the daemon of a login session is found by programs outside it, such as cron jobs. The
 * socket itself is looked at, since ProtectHome= of a service hides it.
 */
static inline void address_user_directory(char *path, size_t size, const char *runtime)
{
	char socket[64];
	struct stat st;

	snprintf(socket, sizeof(socket), "/run/user/%u/tensorlease/socket", (unsigned)geteuid());
	if (runtime && *runtime)
		snprintf(path, size, "%s/tensorlease", runtime);
	else if (!stat(socket, &st))
		snprintf(path, size, "/run/user/%u/tensorlease", (unsigned)geteuid());
	else
		snprintf(path, size, "/tmp/tensorlease-%u", (unsigned)geteuid());
}
