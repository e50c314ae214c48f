/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's front door. */
#pragma once

#include "daemon/serve/peer.h"

/* Acts on a message that passed wire_check(). May drop the peer. */
void peer_dispatch(struct peer *peer, struct conn_message *m);
