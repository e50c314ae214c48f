/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of connections, in steps that are their users' turns (peer_drop() begins them), and
 * orphans, which are looked at from time to time.
 */
#pragma once

#include "daemon/serve/peer.h"

void ends_init(struct peers *peers);
/* Looks whether orphans have gone; workers do that. */
void peers_look(struct peers *peers);
/* Are there connections that are ending, stalled peers, or orphans so new that their processes may
 * just be ending? */
bool peers_unsettled(const struct peers *peers);
