/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a connection: what becomes of its leases, drafts, segments and memory on devices. */
#pragma once

#include "daemon/state/client.h"

/*
 * The connection is over: @c takes no more leases (D1). True: nobody maps its ledger any more, so
 * nobody uses what it held, and all of that is given back. False: a process still maps it and may
 * keep reading and writing what @c held. @c is an orphan then: its leases and drafts stay, until
 * client_look() returns true.
 */
bool client_end(struct client *c, struct state *st);
/* Looks at an orphan. Returns what client_end() does. */
bool client_look(struct client *c, struct state *st);
/*
 * Ends @c without looking. With @reuse all that it had is given back; without, at the daemon's end,
 * nothing of it is used for anything else. @c may be half made.
 */
void client_deinit(struct client *c, struct state *st, bool reuse);
