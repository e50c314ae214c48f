/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of connections, in steps in the turns of their users (peer_drop() begins them), and
 * orphans, which are checked from time to time. */
#pragma once

#include "daemon/serve/peer.h"

void ends_init(struct peers *peers);
/* Has workers check whether orphans have ended. */
void peers_look(struct peers *peers);
/* True if connections are ending, peers are stalled, or an orphan is so new that its process may
 * just be ending. */
bool peers_busy(const struct peers *peers);
/* Starts the timer that closes descriptors. To be called before the loop waits. */
void peers_arm(struct peers *peers);
