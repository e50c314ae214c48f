/* SPDX-License-Identifier: Apache-2.0 */
/* USERS: the shares of each user. */
#pragma once

#include "daemon/serve/peer.h"

void handle_users(struct peer *peer, struct conn_message *m);
