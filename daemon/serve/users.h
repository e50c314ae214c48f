/* SPDX-License-Identifier: Apache-2.0 */
/* USERS: what each user has of each share. */
#pragma once

#include "daemon/serve/peer.h"

void handle_users(struct peer *peer, struct conn_message *m);
