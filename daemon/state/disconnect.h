/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a connection: releases its leases, drafts, segments and memory on devices. A client
 * may have very many of them, so its end is done in steps. Until something is given back it stays
 * charged to its account, and shows in the catalog.
 */
#pragma once

#include "daemon/state/client.h"

/* The client has unmapped a segment that it could write. It is taken for one without a writer,
 * until the client gets a draft there again, with a descriptor. */
void client_lets_go(struct state *st, struct client *c, uint32_t segment, uint32_t generation);

/* The connection is over: @c takes no more leases (D1). Its end goes on with client_end_step(). */
void client_end(struct client *c, struct state *st);

enum client_left {
	CLIENT_MORE,	 /* there is more to do */
	CLIENT_LOOK,	 /* the caller must find out whether the ledger is mapped */
	CLIENT_ORPHANED, /* its process still uses its memory */
	CLIENT_OVER,	 /* everything is given back */
};

/* Continues the end of @c, by some @looks. */
enum client_left client_end_step(struct client *c, struct state *st, unsigned looks);
/*
 * To be called after CLIENT_LOOK, or for an orphan. A process may keep reading and writing the
 * client's memory as long as it has the ledger mapped. The caller finds that out by
 * client_unmap_ledger() and ledger_is_mapped(), reports it here, and goes on with
 * client_end_step().
 */
void client_looked(struct client *c, bool mapped);
/* Ends @c at once, without looking at its ledger's mappings. With @reuse everything is given back.
 * Without it, at the daemon's end, nothing is used again. @c may be half made. */
void client_deinit(struct client *c, struct state *st, bool reuse);
