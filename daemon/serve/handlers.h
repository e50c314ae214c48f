/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's front door. */
#pragma once

#include "daemon/serve/peer.h"

/* True if the client does not send the message again, since it has no answer. */
bool peer_is_unanswered(const struct conn_message *m);
/* Handles a message that passed wire_check(). May drop the peer. */
void peer_dispatch(struct peer *peer, struct conn_message *m);
/* Goes on with the peer's group, and answers at its end. */
void peer_group_step(struct peer *peer);
