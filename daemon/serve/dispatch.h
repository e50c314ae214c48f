/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's front door. */
#pragma once

#include "daemon/serve/peer.h"

/* Is it a request that its client does not send again, since nothing answers it? */
bool peer_is_unanswered(const struct conn_message *m);
/* Acts on a message that passed wire_check(). May drop the peer. */
void peer_dispatch(struct peer *peer, struct conn_message *m);
/* Goes on with the group of the peer's that goes on, and answers in the end. */
void peer_group_step(struct peer *peer);
