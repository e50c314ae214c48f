/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of daemons. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define ADDRESS_SCHEME "tensorlease://"
#define ADDRESS_SYSTEM_DIRECTORY "/run/tensorlease"
#define ADDRESS_SYSTEM_SOCKET ADDRESS_SYSTEM_DIRECTORY "/socket"

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
