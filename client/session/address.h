/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the daemon's socket, connecting to it, and starting a daemon for this user. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Writes the address that tl_connect() documents for @asked, which may be NULL, into @out of @size
 * bytes.
 */
int address_find(char *out, size_t size, const char *asked);

/*
 * Connects to a daemon that may be trusted. *@socket is set even on failure, to a socket or to -1,
 * and the caller closes it.
 */
int address_connect(const char *address, int64_t deadline, int *socket);

/* Starts tensorleased at @address and waits until it or another daemon listens there. */
int address_autostart(const char *address, int64_t deadline);
