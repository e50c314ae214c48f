/* SPDX-License-Identifier: Apache-2.0 */
/* What each user has of what there is. */
#pragma once

#include "daemon/serve/peer.h"

void handle_users(struct peer *peer, struct conn_message *m);
