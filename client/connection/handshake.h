/* SPDX-License-Identifier: Apache-2.0 */
/* A new connection, until a session owns it. fork() makes one for a child as well. */
#pragma once

#include <stdint.h>

#include "client/connection/address.h"
#include "proto/wire.h"

struct ledger;

struct handshake {
	const char *address;
	struct wire_welcome welcome;
	struct ledger *ledger; /* mapped; its descriptor is ledger_fd until the daemon has it */
	int socket;	       /* from address_connect() */
	int ledger_fd;
	int catalog_fd;
	uint64_t clock_ns; /* catalog_view.clock_ns */
	uint32_t life;	   /* of the daemon that reads the ledger, from ADOPTED; or 0 */
};

#define HANDSHAKE_INIT                                                                             \
	{                                                                                          \
		.socket = -1, .ledger_fd = -1, .catalog_fd = -1                                    \
	}

/* Sends HELLO, waits for WELCOME and makes the ledger. @address must live as long as @handshake. */
int handshake_hello(struct handshake *handshake, const struct address *address, int64_t deadline);
/* Tells the daemon that a mapping of the segment is inherited. To be called before
 * handshake_ledger(), which gets the answer. */
int handshake_hold(struct handshake *handshake, uint32_t segment, uint32_t generation,
		   int64_t deadline);
/* Sends the ledger and waits for READY. */
int handshake_ledger(struct handshake *handshake, int64_t deadline);
void handshake_deinit(struct handshake *handshake);
