/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers of administrators' requests. */
#pragma once

#include "daemon/serve/peer.h"

void handle_kick(struct peer *peer, struct conn_message *m);
void handle_restart(struct peer *peer, struct conn_message *m);
