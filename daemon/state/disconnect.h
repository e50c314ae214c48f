/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a connection: what becomes of its leases, drafts, segments and memory on devices. A
 * client may have very many of them, so its end goes in steps. What is not given back yet stays
 * charged to its account, and shows in the catalog.
 */
#pragma once

#include "daemon/state/client.h"

/* The connection is over: @c takes no more leases (D1). Its end goes on with client_end_step(). */
void client_end(struct client *c, struct state *st);

enum client_left {
	CLIENT_MORE,	 /* there is more to do */
	CLIENT_LOOK,	 /* it is to be looked at whether anybody has the ledger mapped */
	CLIENT_ORPHANED, /* its process goes on using what it held */
	CLIENT_OVER,	 /* all that it had is given back */
};

/* Goes on with the end of @c, by some @looks at what it has. */
enum client_left client_end_step(struct client *c, struct state *st, unsigned looks);
/*
 * After CLIENT_LOOK, or for an orphan: a process may keep reading and writing what @c held as long
 * as it has the ledger mapped. The caller finds that out by client_unmap_ledger() and
 * ledger_is_mapped(), says so here, and goes on with client_end_step().
 */
void client_looked(struct client *c, bool mapped);
/*
 * Ends @c at once and without looking. With @reuse all that it had is given back; without, at the
 * daemon's end, nothing of it is used for anything else. @c may be half made.
 */
void client_deinit(struct client *c, struct state *st, bool reuse);
