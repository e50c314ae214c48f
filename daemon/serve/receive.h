/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a peer's socket. */
#pragma once

#include "daemon/serve/peer.h"

/* One turn of a peer: reads and dispatches messages. True: there may be more. */
bool receive_turn(struct peer *peer);
