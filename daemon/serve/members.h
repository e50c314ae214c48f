/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of messages that make members of a group; state/group.h publishes them. */
#pragma once

#include "daemon/serve/peer.h"

void handle_member(struct peer *peer, struct conn_message *m);
void handle_members(struct peer *peer, struct conn_message *m);
